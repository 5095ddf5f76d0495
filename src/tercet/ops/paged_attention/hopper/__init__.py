"""paged_attention for 16-bit floats on Hopper: CUDA C++."""
