"""Both models on the same tokens, position by position, and the measures made of it.

The tokens of one window are not independent of each other; what is resampled are segments of
`SEGMENT_LEN` consecutive positions (a block bootstrap: Kuensch, 1989). Exercised by
`pytest tests/unit/evals/test_token_pairs.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from hasten.evals.distribution import divergence, is_exact
from hasten.evals.gate import Measure
from hasten.evals.harm import BootstrapHarm

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy.typing as npt
    from hasten.evals.distribution import Distribution
    from hasten.evals.harm import Harm
    from hasten.evals.pair import Pair

    F64 = npt.NDArray[np.float64]

SEGMENT_LEN = 64
WORST_PER_WINDOW = 3
CONTEXT_LEN = 24
TOKEN_MEASURES = ("kl_mean", "kl_late", "kl_p99", "top1_change", "perplexity_ratio", "kl_max")

LOWER_BOUND = "a lower bound: full logits of both sides were not available"


class WorstToken(msgspec.Struct, frozen=True, kw_only=True):
    """A place where the two sides expect very different things, as text."""

    position: int
    kl: float
    context: str
    token: str
    baseline_top: str
    candidate_top: str
    baseline_logprob: float
    candidate_logprob: float


class PairedWindow(msgspec.Struct, frozen=True, kw_only=True):
    """One sequence as both sides see it; entry i speaks of token `start + i`."""

    name: str
    token_ids: list[int]
    start: int
    kl: list[float]
    exact: bool
    baseline_logprobs: list[float]
    candidate_logprobs: list[float]
    baseline_top: list[int]
    candidate_top: list[int]
    worst: list[WorstToken]

    def changes(self) -> F64:
        """1 where the most likely token differs."""
        differ = np.array(self.baseline_top) != np.array(self.candidate_top)
        return np.asarray(differ, np.float64)

    def losses(self) -> F64:
        """How much less the candidate expects the token that stands there, in nats."""
        return np.asarray(
            np.array(self.baseline_logprobs) - np.array(self.candidate_logprobs), np.float64
        )


def pair_window(
    pair: Pair, name: str, token_ids: Sequence[int], start: int, expected: Sequence[Distribution]
) -> PairedWindow:
    """Compare the two sides' distributions over the tokens from `start` on."""
    base, cand = expected
    window = PairedWindow(
        name=name,
        token_ids=list(token_ids),
        start=start,
        kl=_rounded(divergence(base, cand)),
        exact=is_exact(base, cand),
        baseline_logprobs=_rounded(base.token_logprobs),
        candidate_logprobs=_rounded(cand.token_logprobs),
        baseline_top=base.top_ids.tolist(),
        candidate_top=cand.top_ids.tolist(),
        worst=[],
    )
    rows = np.argsort(window.kl)[::-1][:WORST_PER_WINDOW].tolist()
    window.worst.extend(_worst(pair, window, row) for row in rows if window.kl[row] > 0.0)
    return window


def _worst(pair: Pair, window: PairedWindow, row: int) -> WorstToken:
    position = window.start + row
    return WorstToken(
        position=position,
        kl=window.kl[row],
        context=pair.decode(window.token_ids[max(position - CONTEXT_LEN, 0) : position]),
        token=pair.decode([window.token_ids[position]]),
        baseline_top=pair.decode([window.baseline_top[row]]),
        candidate_top=pair.decode([window.candidate_top[row]]),
        baseline_logprob=window.baseline_logprobs[row],
        candidate_logprob=window.candidate_logprobs[row],
    )


def _rounded(values: F64) -> list[float]:
    """Seven significant digits: what fp32 holds, in a file that people may open."""
    return [float(f"{value:.7g}") for value in values.tolist()]


def segments(windows: Sequence[PairedWindow], values: Callable[[PairedWindow], Any]) -> list[F64]:
    """`values` of each window in pieces of SEGMENT_LEN positions; a short rest joins its left."""
    pieces: list[F64] = []
    for window in windows:
        row = np.asarray(values(window), np.float64)
        num = max(len(row) // SEGMENT_LEN, 1)
        pieces.extend(piece for piece in np.array_split(row, num) if piece.size)
    return pieces


def late_half(window: PairedWindow) -> list[float]:
    """KL in the later half of the positions, where context that went missing shows."""
    return window.kl[len(window.kl) // 2 :]


def token_measures(
    block: str, windows: Sequence[PairedWindow], limits: Mapping[str, float]
) -> list[Measure]:
    """KL and its tail, agreement, perplexity."""
    kl = segments(windows, lambda window: window.kl)
    late = segments(windows, late_half)
    changes = segments(windows, PairedWindow.changes)
    losses = segments(windows, PairedWindow.losses)
    note = "" if all(window.exact for window in windows) else LOWER_BOUND
    harms: list[tuple[str, str, Harm, str]] = [
        ("kl_mean", "nats", BootstrapHarm.mean(kl, "segments"), note),
        ("kl_late", "nats", BootstrapHarm.mean(late, "segments"), note),
        ("kl_p99", "nats", BootstrapHarm.quantile(kl, 0.99, "segments"), note),
        ("top1_change", "share", BootstrapHarm.mean(changes, "segments"), ""),
        ("perplexity_ratio", "ratio", BootstrapHarm.exp_mean(losses, "segments"), ""),
        ("kl_max", "nats", BootstrapHarm.quantile(kl, 1.0, "segments"), note),
    ]
    return [
        Measure(f"{block}.{name}", unit, harm, limits.get(name), text)
        for name, unit, harm, text in harms
    ]
