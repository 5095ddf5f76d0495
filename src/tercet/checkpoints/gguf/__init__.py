"""GGUF files: header, names, blocks and codes."""
