"""Beam search the slow and obvious way: the oracle for `core.beams`.

Every hypothesis is a list of tokens whose log-probabilities are computed anew from nothing; there
are no requests, blocks or forks. The rules are those of transformers' `generate`: all candidates
compete in one ranking, and one that ends its output is an answer only in the top `width` of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from hasten.core.params import GenerationParams

LogprobsAfter = Callable[[tuple[int, ...]], npt.NDArray[np.float64]]
"""Log-probabilities [vocab] of the token behind these; a step reports them as float32."""


@dataclass(frozen=True, slots=True)
class Found:
    """One answer of a search."""

    token_ids: list[int]
    cum_logprob: float
    finish_reason: str

    def score(self, length_penalty: float) -> float:
        return self.cum_logprob / math.pow(len(self.token_ids), length_penalty)


def search(
    logprobs_after: LogprobsAfter, prompt: Sequence[int], params: GenerationParams
) -> list[Found]:
    """The `n` best, the best first."""
    beam = params.beam
    assert beam is not None
    living: list[tuple[list[int], float]] = [([], 0.0)]
    found: list[Found] = []
    while living:
        candidates: list[tuple[list[int], float]] = []
        for tokens, so_far in living:
            logprobs = logprobs_after((*prompt, *tokens))
            candidates += [
                ([*tokens, token], so_far + float(np.float32(logprobs[token])))
                for token in np.argsort(-logprobs, kind="stable")[: 2 * beam.width].tolist()
            ]
        living = []
        for place, (tokens, total) in enumerate(sorted(candidates, key=lambda pair: -pair[1]), 1):
            if tokens[-1] not in params.terminal_token_ids:
                living.append((tokens, total))
            elif place <= beam.width:
                found.append(Found(tokens, total, "stop"))
        del living[beam.width :]
        if living and len(living[0][0]) == params.max_tokens:
            found += [Found(tokens, total, "length") for tokens, total in living]
            living = []
        found = sorted(found, key=lambda each: -each.score(beam.length_penalty))
        if living and _may_stop(found, living[0], params):
            living = []
    return found[: params.n]


def _may_stop(
    found: Sequence[Found], best: tuple[list[int], float], params: GenerationParams
) -> bool:
    """As transformers documents `early_stopping`."""
    beam = params.beam
    assert beam is not None
    if len(found) < beam.width or beam.early_stopping is True:
        return len(found) >= beam.width
    worst = found[beam.width - 1].score(beam.length_penalty)
    if beam.early_stopping is False:
        return worst >= Found(*best, "").score(beam.length_penalty)
    lengths = range(len(best[0]), params.max_tokens + 1)
    return worst >= max(best[1] / math.pow(length, beam.length_penalty) for length in lengths)
