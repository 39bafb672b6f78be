"""Conversations: what both sides expect of given answers, and how they answer themselves.

Each side renders the prompts by its own template, so a wrong template shows here and not in plain
text. The candidate's own answers are scored by the candidate: a token that it chose while decoding
but does not hold for the most likely one when it reads the same text at once is a fault of
decoding alone (a stale cache, a wrong position), which teacher forcing cannot see.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np
from hasten.evals.blocks.limits import check_limits
from hasten.evals.gate import Measure
from hasten.evals.harm import BootstrapHarm, RateHarm
from hasten.evals.rows import PromptRow
from hasten.evals.target import Prompt, Scored
from hasten.evals.token_pairs import TOKEN_MEASURES, PairedWindow, pair_window, token_measures

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hasten.evals.pair import Pair
    from hasten.evals.target import Continuation, TokenScores


class Answers(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt answered by both. `wrong` lists places in the candidate's answer."""

    name: str
    same_prompt: bool
    baseline: list[int]
    candidate: list[int]
    baseline_text: str
    candidate_text: str
    wrong: list[int]

    @property
    def num_shared(self) -> int:
        """How many tokens the two answers begin with in common."""
        pairs = zip(self.baseline, self.candidate, strict=False)
        shared = next((i for i, (one, other) in enumerate(pairs) if one != other), None)
        return min(len(self.baseline), len(self.candidate)) if shared is None else shared

    @property
    def divergence(self) -> float:
        """The share of the baseline's answer that comes after the first difference."""
        longest = max(len(self.baseline), len(self.candidate))
        return 0.0 if longest == 0 else 1.0 - self.num_shared / longest


class ChatResult(msgspec.Struct, frozen=True, tag="chat"):
    windows: list[PairedWindow]
    answers: list[Answers]


class ChatBlock(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag_field="kind",
    tag="chat",
    forbid_unknown_fields=True,
):
    """The first `num_prompts` prompts of a source, answered greedily in `max_tokens` tokens.

    `tie_nats`: a chosen token counts as wrong only if it is less likely than the most likely one
    by more than this (a server whose sums depend on the batch flips ties).
    """

    name: str
    source: str = "hasten:prompts.jsonl"
    num_prompts: int
    max_tokens: int
    tie_nats: float = 0.05
    limits: dict[str, float] = {}

    def __post_init__(self) -> None:
        check_limits(self.name, self.limits, (*TOKEN_MEASURES, "divergence", "decode_errors"))

    def observe(self, pair: Pair) -> ChatResult:
        rows = pair.data.rows(self.source, PromptRow, self.num_prompts)
        prompts = [
            [Prompt(target.render(row.messages), self.max_tokens) for row in rows]
            for target in pair.both
        ]
        base = pair.baseline.continue_greedily(prompts[0])
        cand = pair.candidate.continue_greedily(prompts[1])
        scores = pair.candidate.score([_own(p, c) for p, c in zip(prompts[1], cand, strict=True)])
        answers = [
            self._compare(row.id, p_base == p_cand, b, c, score)
            for row, p_base, p_cand, b, c, score in zip(
                rows, *prompts, base, cand, scores, strict=True
            )
        ]
        written = base if pair.author is pair.baseline else self._written(pair, rows)
        return ChatResult(self._windows(pair, rows, prompts, written), answers)

    def measures(self, result: ChatResult) -> list[Measure]:
        diverging = [[answer.divergence] for answer in result.answers]
        num_wrong = sum(len(answer.wrong) for answer in result.answers)
        num_decoded = sum(len(answer.candidate) for answer in result.answers)
        return [
            *token_measures(self.name, result.windows, self.limits),
            Measure(
                f"{self.name}.divergence",
                "share",
                BootstrapHarm.mean(diverging, "prompts"),
                self.limits.get("divergence"),
            ),
            Measure(
                f"{self.name}.decode_errors",
                "share",
                RateHarm(num_wrong, num_decoded),
                self.limits.get("decode_errors"),
            ),
        ]

    def _written(self, pair: Pair, rows: Sequence[PromptRow]) -> list[Continuation]:
        prompts = [Prompt(pair.author.render(row.messages), self.max_tokens) for row in rows]
        return pair.author.continue_greedily(prompts)

    def _compare(
        self,
        name: str,
        same_prompt: bool,
        base: Continuation,
        cand: Continuation,
        scores: TokenScores,
    ) -> Answers:
        behind = np.array(scores.top_logprobs) - np.array(scores.logprobs)
        return Answers(
            name=name,
            same_prompt=same_prompt,
            baseline=list(base.token_ids),
            candidate=list(cand.token_ids),
            baseline_text=base.text,
            candidate_text=cand.text,
            wrong=np.flatnonzero(behind > self.tie_nats).tolist(),
        )

    def _windows(
        self,
        pair: Pair,
        rows: Sequence[PromptRow],
        prompts: Sequence[Sequence[Prompt]],
        answers: Sequence[Continuation],
    ) -> list[PairedWindow]:
        """Both sides on the baseline's answers, each after its own rendering of the prompt."""
        windows = []
        for done, (row, base, cand, answer) in enumerate(zip(rows, *prompts, answers, strict=True)):
            pair.progress.advance(done, len(rows))
            expected = [
                target.distribution(_own(prompt, answer))
                for target, prompt in zip(pair.both, (base, cand), strict=True)
            ]
            token_ids = (*base.token_ids, *answer.token_ids)
            windows.append(pair_window(pair, row.id, token_ids, len(base.token_ids), expected))
        return windows


def _own(prompt: Prompt, answer: Continuation) -> Scored:
    return Scored((*prompt.token_ids, *answer.token_ids), len(prompt.token_ids))
