"""Whole tasks: compress, evaluate, generate and report, wired from the floors below."""
