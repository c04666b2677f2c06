"""The extensions that come with the package, which the loaders start with."""
