"""What Tercet changes in the graph of a compiled layer."""
