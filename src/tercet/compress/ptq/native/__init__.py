"""The loops of post-training quantization in C++: columns that follow one another, and scales."""
