"""The modules, functions and classes of the older package, by their names, on top of precast's ops."""
