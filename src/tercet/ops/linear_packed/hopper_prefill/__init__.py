"""linear_packed for more than 16 tokens on Hopper, in CUDA C++."""
