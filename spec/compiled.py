"""What speculation does in every step for every request, compiled where there was a compiler.

The same results (`pytest tests/unit/spec/test_compiled.py`) in a fraction of the time: the model
drives Python's objects out of the processor's caches, so each step pays for every one that it
touches. The descriptions are those of `spec.text_index`, `spec.drafting` and `spec.acceptance`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hasten.spec.proposer import NO_DRAFT, Draft

if TYPE_CHECKING:
    from hasten.spec.acceptance import AcceptanceHistory
    from hasten.spec.drafting import draft_after
    from hasten.spec.text_index import TextIndex
else:
    try:
        from hasten.spec import _native
    except ImportError:
        from hasten.spec.acceptance import AcceptanceHistory
        from hasten.spec.drafting import draft_after
        from hasten.spec.text_index import TextIndex
    else:
        from hasten.spec._native import AcceptanceHistory, TextIndex

        def draft_after(
            index: TextIndex, text_id: int, depth: int, older: TextIndex | None = None
        ) -> Draft:
            """See `spec.drafting.draft_after`."""
            guesses = _native.draft_after(index, text_id, depth, older)
            return NO_DRAFT if guesses is None else Draft(*guesses)


__all__ = ["AcceptanceHistory", "TextIndex", "draft_after"]
