"""What every proposer is: guesses of the next tokens, each with a confidence.

Terms: a *draft* is a run of guessed tokens; its *depth* is their number; the *confidence* of a
guess is the probability that it is right if those before it are. A proposer is asked at any depth,
any of them per request and step, 0 included; what it guesses can cost time and never changes a
token.

Not here: how deep to draft (`spec.depth`), which proposer to ask (`spec.speculator`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hasten.core.request import Request, RequestId


class Draft(NamedTuple):
    """Guessed tokens, and the confidence of each."""

    token_ids: Sequence[int]
    confidences: Sequence[float]


NO_DRAFT = Draft((), ())


class Proposer(Protocol):
    """One way to guess."""

    request_s: float
    """Seconds that asking for one request takes, about: drafting, judging, choosing, learning."""

    def propose(self, requests: Sequence[Request], depths: Sequence[int]) -> list[Draft]:
        """At most `depths[i]` guesses for `requests[i]`, fewer where it has none.

        Not every running request is asked in every step. The requests must not be modified; their
        `token_ids` only ever grow, and may be kept a reference to until `forget`.
        """
        ...

    def forget(self, request_id: RequestId) -> None:
        """The request has ended: drop its state. Unknown ids are ignored."""
        ...
