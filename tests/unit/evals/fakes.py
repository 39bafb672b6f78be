"""A target that computes in microseconds: a random bigram model over bytes, and its tokeniser."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from hasten.evals.configuration import Configuration
from hasten.evals.distribution import FullDistribution
from hasten.evals.target import (
    Continuation,
    Drafts,
    Footprint,
    Prompt,
    Scored,
    TargetError,
    Timing,
    TokenScores,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hasten.evals.target import Message

VOCAB = 256


class FakeTarget:
    """Logits of the next byte depend on the last two bytes, plus noise of size `noise`."""

    def __init__(
        self,
        name: str = "fake",
        *,
        noise: float = 0.0,
        template: str = "<{role}>{content}",
        dies_after: int | None = None,
    ) -> None:
        rng = np.random.default_rng(7)
        self._table = rng.normal(0.0, 2.0, (VOCAB, VOCAB)).astype(np.float32)
        self._table += noise * np.random.default_rng(8).normal(size=(VOCAB, VOCAB)).astype("f4")
        self._table[:, 0] = -5.0
        self._template = template
        self._dies_after = dies_after
        self.num_calls = 0
        self.layer_noise = 0.0
        self.acceptance = 0.0
        self.counted = Drafts(0, 0)
        self.configuration = Configuration(name, {"name": name, "noise": str(noise)})

    @property
    def max_len(self) -> int:
        return 4096

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(text.encode())

    def decode(self, token_ids: Sequence[int]) -> str:
        return bytes(token_ids).decode(errors="replace")

    def render(self, messages: Sequence[Message]) -> tuple[int, ...]:
        return self.encode("".join(self._template.format(**m) for m in messages))

    def distribution(self, scored: Scored) -> FullDistribution:
        self._count()
        ids = scored.token_ids
        logits = np.stack([self._logits(ids[:at]) for at in range(scored.start, len(ids))])
        return FullDistribution.from_logits(logits, ids[scored.start :])

    def layer_outputs(self, token_ids: tuple[int, ...]) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(9)
        shape = (len(token_ids), 8)
        noise = self.layer_noise * rng.normal(size=shape).astype("f4")
        return {f"layers.{i}.down": np.ones(shape, np.float32) + noise for i in range(4)}

    def score(self, scored: Sequence[Scored]) -> list[TokenScores]:
        scores = []
        for one in scored:
            expected = self.distribution(one)
            tops = expected.logprobs.max(axis=1).tolist()
            scores.append(
                TokenScores(expected.token_logprobs.tolist(), expected.top_ids.tolist(), tops)
            )
        return scores

    def continue_greedily(
        self,
        prompts: Sequence[Prompt],
        *,
        fresh_cache: bool = False,  # noqa: ARG002 - no cache
    ) -> list[Continuation]:
        return [self._continue(prompt) for prompt in prompts]

    def time_load(self, prompts: Sequence[Prompt], concurrency: int) -> list[Timing]:
        self._count()
        gap_s = 0.01 * concurrency
        if self.acceptance:
            more = Drafts(100, round(100 * self.acceptance))
            self.counted = Drafts(
                self.counted.num_drafted + more.num_drafted,
                self.counted.num_accepted + more.num_accepted,
            )
        return [Timing(0.0, [gap_s * (i + 1) for i in range(p.max_tokens)]) for p in prompts]

    def drafts(self) -> Drafts:
        return self.counted

    def footprint(self) -> Footprint:
        return Footprint(weights_bytes=1000, kv_bytes_per_token=10.0)

    def close(self) -> None:
        pass

    def _continue(self, prompt: Prompt) -> Continuation:
        self._count()
        ids = list(prompt.token_ids)
        for _ in range(prompt.max_tokens):
            ids.append(int(self._logits(ids).argmax()))
        made = tuple(ids[len(prompt.token_ids) :])
        return Continuation(made, self.decode(made), "length")

    def _logits(self, ids: Sequence[int]) -> np.ndarray:
        before = ids[-2] if len(ids) > 1 else 0
        logits: np.ndarray = self._table[ids[-1]] + 0.5 * self._table[before]
        return logits

    def _count(self) -> None:
        self.num_calls += 1
        if self._dies_after is not None and self.num_calls > self._dies_after:
            raise TargetError(f"{self.configuration.name} died")
