"""The extensions that come with the package, as the loaders begin with them."""
