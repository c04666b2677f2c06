"""Kernels of authors as data: images with their entry points, arguments, and the launch from Python."""
