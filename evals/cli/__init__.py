"""The `evals` command."""

from hasten.evals.cli.main import main

__all__ = ["main"]
