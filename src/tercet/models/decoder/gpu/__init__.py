"""What a GPU runs in place of a decoder's own pass: fused ops, captured as CUDA graphs."""
