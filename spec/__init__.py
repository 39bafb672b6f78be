"""Speculation: what guesses tokens, and how many of them are worth verifying."""

from hasten.spec.build import make_speculator

__all__ = ["make_speculator"]
