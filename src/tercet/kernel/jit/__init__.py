"""C++ and CUDA C++ compiled once a machine, and loaded."""
