"""Training of a packed model as a whole, for its teacher's predictions."""
