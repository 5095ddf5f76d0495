"""Triton's interpreter on a CPU, with a GPU's numbers."""
