"""Building blocks of kernels that several ops share."""
