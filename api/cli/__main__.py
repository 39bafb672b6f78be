"""`python -m hasten.api.cli` is the `hasten` command."""

from hasten.api.cli.main import main

main(prog_name="hasten")
