"""Building blocks in Triton of ops with packed weights."""
