"""The `hasten` command. Each subcommand imports what it needs when it runs."""

from hasten.api.cli.main import main

__all__ = ["main"]
