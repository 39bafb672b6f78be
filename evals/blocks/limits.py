"""Limits name measures; a name that does not exist is an error, not a limit never checked."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def check_limits(block: str, limits: Mapping[str, float], known: Sequence[str]) -> None:
    """Raises ValueError naming the unknown measure and its nearest match."""
    for name in limits:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(known)}"
            raise ValueError(f"block {block!r} has no measure {name!r}; {hint}")
