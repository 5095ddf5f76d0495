"""attention on Hopper, in CUDA C++."""
