"""`tercet kernel`: one file a verb."""
