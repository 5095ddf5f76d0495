"""x as float16 before a product on Hopper, in CUDA C++."""
