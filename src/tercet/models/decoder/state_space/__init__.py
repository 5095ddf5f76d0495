"""State spaces beside attention: what they compute, and what they keep of a text."""
