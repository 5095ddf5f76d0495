"""Training of a source model in a format, and of a packed model as a whole."""
