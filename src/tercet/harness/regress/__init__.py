"""Whether a version is slower, larger or needs more resources than another."""
