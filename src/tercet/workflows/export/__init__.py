"""export: a packed checkpoint for another program, and the proof that it means the same there."""
