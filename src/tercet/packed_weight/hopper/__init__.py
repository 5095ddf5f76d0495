"""Products of packed weights on Hopper: headers in CUDA C++, and their tiles by name."""
