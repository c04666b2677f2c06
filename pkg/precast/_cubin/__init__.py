"""Authors' kernels as data: images with their entry points, arguments, and launches from Python."""
