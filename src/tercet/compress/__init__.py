"""Compression: plans, calibration and algorithms."""
