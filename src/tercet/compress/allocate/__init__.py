"""Bit allocation: how much each format hurts each module, and the best choice within a budget."""
