"""What `tercet kernel` does, by plain names and numbers, for machines."""
