"""Allocation: a plan that bits were allocated in is carried out, and formats are timed."""
