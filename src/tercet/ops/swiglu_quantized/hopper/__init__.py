"""swiglu_quantized of few rows on Hopper: a cluster of blocks takes a row."""
