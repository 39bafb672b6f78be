"""The user's cache folder: $HASTEN_CACHE, else $XDG_CACHE_HOME/hasten, else ~/.cache/hasten.

What lies there can be made again at any time, so failing to write is a warning and never an error.
Exercised by `pytest tests/unit/loading/test_cache.py`.
"""

from __future__ import annotations

import logging
import os
import tempfile
from pathlib import Path

logger = logging.getLogger(__name__)


def cache_folder() -> Path:
    """Where the cache is; it need not exist."""
    own, shared = os.environ.get("HASTEN_CACHE"), os.environ.get("XDG_CACHE_HOME")
    if own:
        return Path(own).expanduser()
    # A relative XDG_CACHE_HOME is to be ignored, says the XDG base directory specification.
    if shared and Path(shared).is_absolute():
        return Path(shared) / "hasten"
    return Path("~/.cache/hasten").expanduser()


def write_atomically(path: Path, content: bytes) -> bool:
    """Put `content` at `path` whole or not at all; says whether it did, and logs why not."""
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        temporary = Path(name)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        temporary.replace(path)
    except OSError as error:
        logger.warning("cannot write to the cache at %s: %s", path, error.strerror or error)
        if temporary is not None:
            temporary.unlink(missing_ok=True)
        return False
    return True
