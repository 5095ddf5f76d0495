"""Distillation: losses between a teacher and a student, and what a teacher leaves on disk."""
