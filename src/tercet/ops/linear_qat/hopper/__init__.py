"""linear_qat on Hopper, in CUDA C++."""
