"""Nothing but operations: one folder each, found by discovery, independent of each other."""
