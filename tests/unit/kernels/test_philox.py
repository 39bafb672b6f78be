"""Philox against the published vectors, and the noise that is made of it."""

from __future__ import annotations

import numpy as np
import pytest
from hasten.kernels.philox import gumbel_noise, philox4x32

ONES = 0xFFFFFFFF
# Counter, key, random words: kat_vectors of the Random123 library, "philox4x32 10".
KNOWN_ANSWERS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((ONES,) * 4, (ONES,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN_ANSWERS)
def test_known_answers(
    counter: tuple[int, ...], key: tuple[int, int], words: tuple[int, ...]
) -> None:
    assert philox4x32(counter, key).tolist() == list(words)


def test_many_counters_at_once() -> None:
    counters = np.array([answer[0] for answer in KNOWN_ANSWERS[:1]] * 3)
    assert philox4x32(counters, (0, 0)).tolist() == [list(KNOWN_ANSWERS[0][2])] * 3


def test_noise_follows_the_documented_counter() -> None:
    seed, position, sample_idx, token_id = 0x299F31D0A4093822, 77, 3, 4 * 1234 + 2
    word = philox4x32((position, 1234, sample_idx, 0), (0xA4093822, 0x299F31D0))[2]
    noise = gumbel_noise(seed, position, sample_idx, np.array([token_id]))
    assert noise[0] == -np.log(-np.log((float(word) + 0.5) / 2.0**32))


def test_noise_is_always_finite_and_standard_gumbel() -> None:
    noise = gumbel_noise(11, 5, 0, np.arange(200_000))
    assert np.isfinite(noise).all()
    assert noise.mean() == pytest.approx(np.euler_gamma, abs=0.015)
    assert noise.var() == pytest.approx(np.pi**2 / 6, abs=0.04)


@pytest.mark.parametrize("word", [0, ONES])
def test_extreme_words_give_finite_noise(word: int) -> None:
    uniform = (word + 0.5) / 2.0**32
    assert 0 < uniform < 1
    assert np.isfinite(-np.log(-np.log(uniform)))
