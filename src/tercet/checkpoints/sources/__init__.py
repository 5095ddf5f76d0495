"""Original models: a directory, a GGUF file, a name on the hub or of a package."""
