"""GGUF, the file of llama.cpp: codes written directly into its blocks, run in llama.cpp itself."""

from tercet.export.gguf.target import GgufTarget

TARGET = GgufTarget()

__all__ = ["TARGET", "GgufTarget"]
