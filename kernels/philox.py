"""Philox4x32-10, the counter-based random numbers of sampling, in numpy: slow and obvious.

A counter (four 32-bit words) and a key (two) give four random words; nothing is remembered between
calls. Backends implement the same function natively and are compared with this one.

Source: Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3 (SC 2011), and the
known-answer vectors of their Random123 library. Exercised by
`pytest tests/unit/kernels/test_philox.py`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

NUM_ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
WORD_MASK = 0xFFFFFFFF

U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]


def philox4x32(counter: npt.ArrayLike, key: npt.ArrayLike) -> U32:
    """Four random words, [..., 4], for each counter [..., 4] under `key` [2] (32-bit words)."""
    words = np.moveaxis(np.asarray(counter, dtype=np.uint64), -1, 0)
    low, high = (int(word) for word in np.asarray(key, dtype=np.uint64))
    for _ in range(NUM_ROUNDS):
        words = _round(words, low, high)
        low = (low + WEYL[0]) & WORD_MASK
        high = (high + WEYL[1]) & WORD_MASK
    return np.moveaxis(words, 0, -1).astype(np.uint32)


def _round(words: U64, low: int, high: int) -> U64:
    first = words[0] * np.uint64(MULTIPLIERS[0])
    second = words[2] * np.uint64(MULTIPLIERS[1])
    return np.stack(
        (
            (second >> np.uint64(32)) ^ words[1] ^ np.uint64(low),
            second & np.uint64(WORD_MASK),
            (first >> np.uint64(32)) ^ words[3] ^ np.uint64(high),
            first & np.uint64(WORD_MASK),
        )
    )


def gumbel_noise(
    seed: int, position: int, sample_idx: int, token_ids: npt.NDArray[np.integer]
) -> npt.NDArray[np.float64]:
    """The Gumbel noise of `ops.Sample` for `token_ids` [n] of one row, fp64."""
    ids = np.asarray(token_ids, dtype=np.uint64)
    counter = np.zeros((len(ids), 4), dtype=np.uint64)
    counter[:, 0] = position
    counter[:, 1] = ids // 4
    counter[:, 2] = sample_idx
    words = philox4x32(counter, (seed & WORD_MASK, seed >> 32))
    chosen = np.take_along_axis(words, (ids % 4).astype(np.intp)[:, None], axis=1)[:, 0]
    uniform = (chosen.astype(np.float64) + 0.5) / 2.0**32
    noise: npt.NDArray[np.float64] = -np.log(-np.log(uniform))
    return noise
