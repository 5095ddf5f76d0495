"""grouped_linear_packed for experts of few rows on Hopper, in CUDA C++."""
