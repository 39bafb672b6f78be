"""`python -m hasten.evals.cli` is the `evals` command."""

from hasten.evals.cli.main import main

main(prog_name="evals")
