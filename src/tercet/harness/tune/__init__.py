"""The fastest right configuration of a kernel for each shape."""
