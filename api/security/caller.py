"""Who asked for what is being computed: set where a request enters, read where it is handed on.

A context variable and not an argument, because between the two lie the end points of four APIs,
which have no business with keys.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hasten.api.security.keys import ANYBODY, Key

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hasten.api.text.sample_text import SampleDelta


@dataclass(slots=True)
class Caller:
    """One request's key and, for records of it, what it has come to."""

    key: Key = ANYBODY
    begin_s: float = field(default_factory=time.monotonic)
    trace_parent: str | None = None
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    ttft_s: float | None = None
    finish_reason: str | None = None
    prompts: list[list[int]] = field(default_factory=list)

    def note(self, delta: SampleDelta, since_begin_s: float) -> None:
        """A step has given something."""
        if self.ttft_s is None:
            self.ttft_s = since_begin_s
        self.num_output_tokens += delta.num_tokens
        self.finish_reason = delta.finish_reason or self.finish_reason


_CALLER: ContextVar[Caller] = ContextVar("caller")


def caller() -> Caller:
    """Who asks; anybody, outside of any request."""
    return _CALLER.get(Caller())


@contextmanager
def calling(who: Caller) -> Iterator[None]:
    """Inside, and in the tasks begun inside, `who` asks."""
    outside = caller()
    _CALLER.set(who)
    try:
        yield
    finally:
        # Not by a token: gRPC leaves a cancelled stream to be closed in a context of its own.
        _CALLER.set(outside)
