"""Weights on disk: sources of any kind are read, packed checkpoints are read and written."""
