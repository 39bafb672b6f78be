"""Who may ask, and how much: API keys and their limits."""

from hasten.api.security.keys import Key, KeyFileError, Keyring

__all__ = ["Key", "KeyFileError", "Keyring"]
