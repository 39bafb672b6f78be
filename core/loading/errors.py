"""The one error of loading."""

from __future__ import annotations


class LoadError(ValueError):
    """A model cannot be loaded. The message is one line that names the file, tensor or field."""
