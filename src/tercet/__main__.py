"""python -m tercet: the command line."""

from tercet.cli.main import main

main()
