"""Nothing but operations: one folder each, found by discover.py, independent of each other."""
