"""Quantized checkpoints of other programs, made packed ones without loss."""
