"""Where an implementation runs while it is judged: its own process, memory with guard zones."""
