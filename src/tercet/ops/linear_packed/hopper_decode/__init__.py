"""linear_packed for up to 16 tokens on Hopper, in CUDA C++."""
