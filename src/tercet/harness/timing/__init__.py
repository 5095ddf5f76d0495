"""Clocks, statistics, and the limits of the machine."""
