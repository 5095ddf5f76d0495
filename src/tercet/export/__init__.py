"""Other programs' ways to load a packed checkpoint: one file or folder each."""
