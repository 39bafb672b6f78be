"""What a model expects at each position, whole or in part, and how far two models are apart.

Row r of a distribution speaks of the token at position `start + r` of the sequence it was made
for. Log-probabilities are natural logarithms. Exercised by
`pytest tests/unit/evals/test_distribution.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Sequence

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
I32 = npt.NDArray[np.int32]

KEPT_ALTERNATIVES = 64
"""How many of the most likely tokens a stored run keeps per position."""


@dataclass(frozen=True, slots=True)
class TopDistribution:
    """The most likely tokens of each position, and the token that really stands there.

    Rows may hold fewer than k alternatives: the free places have the id -1 and log-probability
    -inf, and stand at the end.
    """

    token_logprobs: F64  # [num_rows]
    ids: I32  # [num_rows, k], most likely first
    logprobs: F64  # [num_rows, k]

    @property
    def top_ids(self) -> I32:
        """The most likely token of each row."""
        first: I32 = self.ids[:, 0]
        return first

    def kept(self) -> TopDistribution:
        k = KEPT_ALTERNATIVES
        return TopDistribution(self.token_logprobs, self.ids[:, :k], self.logprobs[:, :k])


@dataclass(frozen=True, slots=True)
class FullDistribution:
    """The log-probability of every token at each position."""

    token_ids: I32  # [num_rows] the tokens that really stand there
    logprobs: F32  # [num_rows, vocab_size]

    @classmethod
    def from_logits(cls, logits: F32, token_ids: Sequence[int]) -> FullDistribution:
        """Logits [num_rows, vocab_size] for `token_ids` [num_rows]. Raises ValueError on NaN."""
        if not np.isfinite(logits).all():
            raise ValueError("the logits hold NaN or infinity")
        logprobs = logits - logits.max(axis=1, keepdims=True)
        total = np.exp(logprobs).sum(axis=1, keepdims=True, dtype=np.float64)
        logprobs -= np.log(total).astype(np.float32)
        return cls(np.asarray(token_ids, np.int32), logprobs)

    @property
    def token_logprobs(self) -> F64:
        rows = np.arange(len(self.token_ids))
        return np.asarray(self.logprobs[rows, self.token_ids], np.float64)

    @property
    def top_ids(self) -> I32:
        return np.asarray(self.logprobs.argmax(axis=1), np.int32)

    def kept(self) -> TopDistribution:
        """Its most likely tokens; ties in favour of the lower id."""
        k = min(KEPT_ALTERNATIVES, self.logprobs.shape[1])
        ids = np.stack([_most_likely(row, k) for row in self.logprobs]).astype(np.int32)
        values = np.take_along_axis(self.logprobs, ids, axis=1).astype(np.float64)
        return TopDistribution(self.token_logprobs, ids, values)


def _most_likely(row: F32, k: int) -> npt.NDArray[np.intp]:
    """The ids of the k largest of a row, largest first.

    Few tokens come near the most likely one; sorting those is far faster than partitioning a whole
    vocabulary.
    """
    near = np.arange(len(row))
    for distance in (6.0, 12.0):
        found = np.flatnonzero(row > row.max() - distance)
        if len(found) >= k:
            near = found
            break
    order = np.argsort(-row[near], kind="stable")[:k]
    return near[order]


Distribution = FullDistribution | TopDistribution


def divergence(baseline: Distribution, candidate: Distribution) -> F64:
    """KL(baseline || candidate) of each row in nats, [num_rows].

    Exact between full distributions. Otherwise a lower bound: tokens known on both sides are
    compared one by one and all others as one lump, and lumping never increases KL (the data
    processing inequality).
    """
    if isinstance(baseline, FullDistribution) and isinstance(candidate, FullDistribution):
        return _full_divergence(baseline.logprobs, candidate.logprobs)
    rows = range(len(baseline.token_logprobs))
    return np.array([_row_bound(*_known_to_both(baseline, candidate, row)) for row in rows])


def is_exact(baseline: Distribution, candidate: Distribution) -> bool:
    """Whether `divergence` is exact for these two."""
    return isinstance(baseline, FullDistribution) and isinstance(candidate, FullDistribution)


def _full_divergence(base: F32, cand: F32) -> F64:
    terms = np.exp(base)
    terms *= base - cand
    return np.asarray(np.maximum(terms.sum(axis=1, dtype=np.float64), 0.0), np.float64)


def _known_to_both(baseline: Distribution, candidate: Distribution, row: int) -> tuple[F64, F64]:
    """Log-probabilities on both sides of the tokens that both sides know."""
    if isinstance(baseline, FullDistribution):
        assert isinstance(candidate, TopDistribution)
        ids, cand = _row(candidate, row)
        return baseline.logprobs[row, ids].astype(np.float64), cand
    ids, base = _row(baseline, row)
    if isinstance(candidate, FullDistribution):
        return base, candidate.logprobs[row, ids].astype(np.float64)
    cand_ids, cand = _row(candidate, row)
    _, of_base, of_cand = np.intersect1d(ids, cand_ids, return_indices=True)
    return base[of_base], cand[of_cand]


def _row(known: TopDistribution, row: int) -> tuple[I32, F64]:
    valid = known.ids[row] >= 0
    return known.ids[row, valid], known.logprobs[row, valid]


def _row_bound(base: F64, cand: F64) -> float:
    base_mass, cand_mass = np.exp(base), np.exp(cand)
    known = float(np.sum(base_mass * (base - cand)))
    base_rest = max(1.0 - float(base_mass.sum()), 0.0)
    cand_rest = max(1.0 - float(cand_mass.sum()), 1e-12)
    rest = base_rest * float(np.log(base_rest / cand_rest)) if base_rest > 0.0 else 0.0
    return max(known + rest, 0.0)
