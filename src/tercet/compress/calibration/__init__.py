"""Calibration: what the inputs of each linear are like, one layer in memory at a time."""
