"""`python -m cleave`: the command line."""

from cleave.cli import main

main()
