"""Tensor parallelism (arXiv:1909.08053): each rank holds a part of every layer's products."""
