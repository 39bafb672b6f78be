"""Token outputs of an engine to text deltas: what every front end streams or collects.

Exercised by `pytest tests/unit/api/test_completions.py`.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Protocol

from hasten.api.client import (
    DeadlineExceededError,
    EngineError,
    GrammarTooComplexError,
    RequestAbortedError,
    RequestFailedError,
    WaitedTooLongError,
)
from hasten.api.text.sample_text import SampleDelta, SampleText, StopRules

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from hasten.api.text.detokenizer import TokenBytes
    from hasten.core.messages import AddRequest, TokenOutput


FAILURES: dict[str, tuple[type[EngineError], str]] = {
    "abort": (RequestAbortedError, "the engine aborted the request"),
    "deadline": (DeadlineExceededError, "the deadline has passed, or cannot be met any more"),
    "overload": (WaitedTooLongError, "its turn did not come in time (--max-queue-wait-ms)"),
    "error": (RequestFailedError, "the model's numbers for this request are broken (NaN)"),
    "grammar": (GrammarTooComplexError, "the grammar of this request is too complex to follow"),
}
"""Finish reasons of the engine that no text ends with, and what they are for a client."""


class TokenSource(Protocol):
    """Where tokens come from: an `EngineClient`."""

    def generate(self, request: AddRequest) -> AsyncGenerator[TokenOutput]: ...

    def end_sample(self, request_id: str, sample_idx: int) -> None: ...


async def generate_text(
    source: TokenSource, vocabulary: TokenBytes, request: AddRequest, rules: StopRules
) -> AsyncGenerator[SampleDelta]:
    """The deltas of all samples, in the order of the steps, until each has finished.

    Leaving early aborts what is left: wrap it in `contextlib.aclosing`. Raises what
    `EngineClient.generate` raises.
    """
    unfinished = {i: SampleText(vocabulary, rules, i) for i in range(request.params.n)}
    async with aclosing(source.generate(request)) as outputs:
        async for output in outputs:
            sample = unfinished.get(output.sample_idx)
            if sample is None:
                continue  # on the way when a stop string ended the sample
            failure = FAILURES.get(output.finish_reason or "")
            if failure is not None:
                raise failure[0](failure[1])
            delta = sample.push(output)
            if delta.finish_reason is not None:
                del unfinished[output.sample_idx]
            yield delta
            if not unfinished:
                return
            if delta.finish_reason is not None and output.finish_reason is None:
                source.end_sample(request.request_id, output.sample_idx)


async def pooled(source: TokenSource, request: AddRequest) -> list[float]:
    """The embedding of a request that pools. Raises what `EngineClient.generate` raises."""
    async with aclosing(source.generate(request)) as outputs:
        output = await anext(outputs)
    if output.embedding is None:
        kind, reason = FAILURES[output.finish_reason or "abort"]
        raise kind(reason)
    return output.embedding
