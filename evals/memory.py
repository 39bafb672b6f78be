"""A target that remembers: answers are kept by content, so nothing is measured twice.

The same wrapper makes runs resumable (answers of an interrupted run are there), caches results
(the same configuration gives the same answers), and turns a stored run into a target (no inner
target: what was not measured then is refused). Timings are measurements of a moment and are never
remembered. Exercised by `pytest tests/unit/evals/test_memory.py`.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import numpy as np
from hasten.evals.distribution import TopDistribution
from hasten.evals.target import (
    CannotMeasureError,
    Continuation,
    Drafts,
    Footprint,
    Message,
    Prompt,
    Scored,
    Timing,
    TokenScores,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hasten.evals.configuration import Configuration
    from hasten.evals.distribution import F32, Distribution
    from hasten.evals.journal import Journal
    from hasten.evals.target import Target


T = TypeVar("T")


class _Packed(msgspec.Struct, frozen=True, array_like=True):
    """A TopDistribution as bytes: [rows], [rows, k], [rows, k]."""

    num_rows: int
    token_logprobs: bytes  # f32
    ids: bytes  # i32
    logprobs: bytes  # f32


_MAX_LEN = b"max_len"


class RememberingTarget:
    """`target` with a memory; without a target, the memory alone."""

    def __init__(
        self, configuration: Configuration, journal: Journal, target: Target | None
    ) -> None:
        self.configuration = configuration
        self._journal = journal
        self._target = target
        if target is not None:
            journal.put(_MAX_LEN, msgspec.msgpack.encode(target.max_len))

    @property
    def max_len(self) -> int:
        """Of a stored run, what it had then."""
        if self._target is not None:
            return self._target.max_len
        return msgspec.msgpack.decode(self._recall(_MAX_LEN), type=int)

    def encode(self, text: str) -> tuple[int, ...]:
        return self._remember("encode", text, tuple[int, ...], lambda t: t.encode(text))

    def decode(self, token_ids: Sequence[int]) -> str:
        ids = tuple(token_ids)
        return self._remember("decode", ids, str, lambda t: t.decode(ids))

    def render(self, messages: Sequence[Message]) -> tuple[int, ...]:
        asked = list(messages)
        return self._remember("render", asked, tuple[int, ...], lambda t: t.render(asked))

    def distribution(self, scored: Scored) -> Distribution:
        """Fresh ones are whole; remembered ones keep only the most likely tokens."""
        key = _key("distribution", scored)
        if self._target is None:
            return _unpack(msgspec.msgpack.decode(self._recall(key), type=_Packed))
        fresh = self._target.distribution(scored)
        if self._journal.get(key) is None:
            self._journal.put(key, msgspec.msgpack.encode(_pack(fresh.kept())))
        return fresh

    def layer_outputs(self, token_ids: tuple[int, ...]) -> dict[str, F32]:
        """Never remembered: large, and only of use beside another live model's."""
        return self._inner().layer_outputs(token_ids)

    def score(self, scored: Sequence[Scored]) -> list[TokenScores]:
        return self._remember_each("score", scored, TokenScores, lambda t, new: t.score(new))

    def continue_greedily(
        self, prompts: Sequence[Prompt], *, fresh_cache: bool = False
    ) -> list[Continuation]:
        """Remembered, except with `fresh_cache`: then the point is to compute again."""
        if fresh_cache:
            return self._inner().continue_greedily(prompts, fresh_cache=True)
        return self._remember_each(
            "continue", prompts, Continuation, lambda t, new: t.continue_greedily(new)
        )

    def time_load(self, prompts: Sequence[Prompt], concurrency: int) -> list[Timing]:
        return self._inner().time_load(prompts, concurrency)

    def drafts(self) -> Drafts:
        return self._inner().drafts()

    def footprint(self) -> Footprint:
        return self._remember("footprint", None, Footprint, lambda t: t.footprint())

    def close(self) -> None:
        """The journal stays open: it is the store's, and both sides may share it."""
        if self._target is not None:
            self._target.close()

    def _inner(self) -> Target:
        if self._target is None:
            raise CannotMeasureError(f"{self.configuration.name} is a stored run, not a live model")
        return self._target

    def _recall(self, key: bytes) -> bytes:
        value = self._journal.get(key)
        if value is None:
            raise CannotMeasureError(
                f"the stored run {self.configuration.name} did not measure this"
            )
        return value

    def _remember(self, kind: str, asked: Any, of_type: type[T], ask: Callable[[Target], T]) -> T:
        key = _key(kind, asked)
        if self._target is None or self._journal.get(key) is not None:
            return msgspec.msgpack.decode(self._recall(key), type=of_type)
        answer = ask(self._target)
        self._journal.put(key, msgspec.msgpack.encode(answer))
        return answer

    def _remember_each(
        self,
        kind: str,
        asked: Sequence[Any],
        of_type: type[T],
        ask: Callable[[Target, Sequence[Any]], list[T]],
    ) -> list[T]:
        """Ask for what is not known yet, all at once, and answer in order."""
        keys = [_key(kind, one) for one in asked]
        new = [i for i, key in enumerate(keys) if self._journal.get(key) is None]
        if new and self._target is not None:
            for i, answer in zip(new, ask(self._target, [asked[i] for i in new]), strict=True):
                self._journal.put(keys[i], msgspec.msgpack.encode(answer))
        return [msgspec.msgpack.decode(self._recall(key), type=of_type) for key in keys]


def _key(kind: str, asked: Any) -> bytes:
    encoded = msgspec.msgpack.encode((kind, asked), order="sorted")
    return hashlib.sha256(encoded).digest()


def _pack(kept: TopDistribution) -> _Packed:
    return _Packed(
        len(kept.token_logprobs),
        kept.token_logprobs.astype("<f4").tobytes(),
        kept.ids.astype("<i4").tobytes(),
        kept.logprobs.astype("<f4").tobytes(),
    )


def _unpack(packed: _Packed) -> TopDistribution:
    shape = (packed.num_rows, -1)
    return TopDistribution(
        np.frombuffer(packed.token_logprobs, "<f4").astype(np.float64),
        np.frombuffer(packed.ids, "<i4").astype(np.int32).reshape(shape),
        np.frombuffer(packed.logprobs, "<f4").astype(np.float64).reshape(shape),
    )
