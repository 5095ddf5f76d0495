"""Mutation testing: an op's own kernels with one thing changed each, to see what checks miss."""
