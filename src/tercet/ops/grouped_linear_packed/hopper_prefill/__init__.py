"""grouped_linear_packed for experts of many rows on Hopper, in CUDA C++."""
