"""Weights of ours in the layouts of other libraries, to measure against them."""
