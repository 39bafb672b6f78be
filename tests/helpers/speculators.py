"""Scripted speculators: right, wrong and random drafts of random depth."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

from hasten.core.latency import StepShape
from hasten.core.request import Request, RequestId

Script = Callable[[Request, int], list[int]]


class ScriptedSpeculator:
    """Proposes what a function says, at depths that change from step to step."""

    def __init__(self, script: Script, seed: int = 0, max_depth: int = 8) -> None:
        self.forgotten: list[RequestId] = []
        self._script = script
        self._rng = random.Random(seed)
        self._max_depth = max_depth

    @property
    def methods(self) -> frozenset[str]:
        return frozenset({"scripted"})

    @property
    def gain(self) -> float:
        return 1.0

    def speculate(
        self,
        requests: Sequence[Request],
        max_depths: Sequence[int],
        beside: StepShape,  # noqa: ARG002 (the protocol's)
    ) -> Sequence[Sequence[int]]:
        proposed = []
        for request, max_depth in zip(requests, max_depths, strict=True):
            depth = min(max_depth, self._rng.randint(0, self._max_depth))
            proposed.append(self._script(request, depth)[:depth] if depth > 0 else [])
        return proposed

    def forget(self, request_id: RequestId) -> None:
        self.forgotten.append(request_id)


def perfect(texts: Mapping[tuple[str, int], Sequence[int]]) -> Script:
    """Drafts what each sample is known to say."""

    def script(request: Request, depth: int) -> list[int]:
        known = texts[request.group_id, request.sample_idx]
        begin = request.num_output_tokens
        return list(known[begin : begin + depth])

    return script


def wrong(vocab_size: int, texts: Mapping[tuple[str, int], Sequence[int]]) -> Script:
    """Drafts something else."""
    right = perfect(texts)

    def script(request: Request, depth: int) -> list[int]:
        return [(token_id + 1) % vocab_size for token_id in right(request, depth)]

    return script


def patchy(
    vocab_size: int, texts: Mapping[tuple[str, int], Sequence[int]], seed: int = 0
) -> Script:
    """Right three times out of four, so that acceptance ends anywhere."""
    right, rng = perfect(texts), random.Random(seed)

    def script(request: Request, depth: int) -> list[int]:
        return [
            token_id if rng.random() < 0.75 else rng.randrange(vocab_size)
            for token_id in right(request, depth)
        ]

    return script
