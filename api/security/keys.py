"""API keys: who is who, and who may do what.

A key file is TOML with one table per key. It holds no key, only what a key is recognised by, so it
may be read by whoever may read the server's configuration:

    [alice]                           # the name, as metrics and logs show it
    sha256 = "9f86d081884c7d65..."    # of the key; `hasten key alice` makes both
    max_concurrent_requests = 8       # optional
    requests_per_minute = 120         # optional
    admin = true                      # optional: may see what runs (/v1/debug)

Keys are made by machines and have 256 bits, so a fast hash without salt is as good as a slow one
with it. Exercised by `pytest tests/unit/api/test_keys.py`.
"""

from __future__ import annotations

import hmac
import re
import secrets
import tomllib
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_DIGEST = re.compile(r"[0-9a-f]{64}")


class KeyFileError(ValueError):
    """A key file that cannot be used; the message names the file, the key and the field."""


@dataclass(frozen=True, slots=True)
class Key:
    """Who asks. Without limits where they are None."""

    name: str
    digest: bytes = b""
    max_concurrent_requests: int | None = None
    requests_per_minute: int | None = None
    is_admin: bool = False


ANYBODY = Key("", is_admin=True)
"""Who asks a server that requires no key."""


class Keyring:
    """The keys that a server accepts."""

    def __init__(self, keys: tuple[Key, ...]) -> None:
        self._keys = keys

    @classmethod
    def of(cls, api_key: str | None, key_file: str | None) -> Keyring | None:
        """One key that may do everything, those of a file, or both; None to require none.

        Raises KeyFileError.
        """
        keys = _read(Path(key_file)) if key_file is not None else []
        if api_key is not None:
            keys.append(Key("default", digest_of(api_key), is_admin=True))
        return cls(tuple(keys)) if keys else None

    def find(self, authorization: bytes) -> Key | None:
        """Whose "Bearer KEY" this is, or None.

        In constant time: how long it takes tells nothing of how much of a guess is right, nor
        whose key it is like.
        """
        scheme, _, given = authorization.partition(b" ")
        digest = sha256(given).digest()
        found = None
        for key in self._keys:
            if hmac.compare_digest(digest, key.digest):
                found = key
        return found if scheme.lower() == b"bearer" else None


def digest_of(key: str) -> bytes:
    return sha256(key.encode()).digest()


def new_key() -> str:
    """A key that nobody has."""
    return f"hsk-{secrets.token_urlsafe(32)}"


def _read(path: Path) -> list[Key]:
    try:
        tables = tomllib.loads(path.read_text())
    except OSError as error:
        raise KeyFileError(f"{path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise KeyFileError(f"{path}: {error}") from error
    if not tables:
        raise KeyFileError(f"{path}: there is no key in it")
    return [_key(f"{path}: [{name}]", name, fields) for name, fields in tables.items()]


def _key(where: str, name: str, fields: object) -> Key:
    """Raises KeyFileError."""
    if not isinstance(fields, dict):
        raise KeyFileError(f"{where} must be a table")
    if not _NAME.fullmatch(name) or name == "default":
        raise KeyFileError(f"{where}: a name has letters, digits, '.', '_' and '-', not 'default'")
    known = {"sha256", "max_concurrent_requests", "requests_per_minute", "admin"}
    for unknown in fields.keys() - known:
        raise KeyFileError(f"{where}: unknown field {unknown!r}; there are: {', '.join(known)}")
    digest = fields.get("sha256")
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise KeyFileError(f"{where}: sha256 must be 64 hexadecimal digits, in lower case")
    is_admin = fields.get("admin", False)
    if not isinstance(is_admin, bool):
        raise KeyFileError(f"{where}: admin must be true or false")
    return Key(
        name,
        bytes.fromhex(digest),
        _limit(where, fields, "max_concurrent_requests"),
        _limit(where, fields, "requests_per_minute"),
        is_admin,
    )


def _limit(where: str, fields: dict[str, Any], name: str) -> int | None:
    limit = fields.get(name)
    if limit is None:
        return None
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
        raise KeyFileError(f"{where}: {name} must be a whole number from 1 on")
    return limit
