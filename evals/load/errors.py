"""What can go wrong with a load run, beside single requests that fail (those are counted)."""

from __future__ import annotations


class LoadError(ValueError):
    """A workload or a run that cannot give a meaningful result; the message names what is wrong."""
