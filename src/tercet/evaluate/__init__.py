"""Honest numbers: perplexity, divergence from the teacher, and sizes with everything counted."""
