"""Post-training quantization: one file an algorithm, each a function of tensors."""
