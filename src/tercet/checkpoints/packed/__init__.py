"""The packed checkpoint: its layout, reading and writing."""
