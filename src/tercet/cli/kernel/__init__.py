"""`tercet kernel`: one file per subcommand."""
