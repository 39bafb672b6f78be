"""The hash of weights: what it sees."""

from __future__ import annotations

import numpy as np
from hasten.core.loading.fingerprint import PAGE_BYTES, WHOLE_BYTES, fingerprint


def test_a_fingerprint_sees_headers_sizes_and_sampled_bytes() -> None:
    small = np.zeros(100, np.uint8)
    large = np.zeros(4 * WHOLE_BYTES, np.uint8)
    base = fingerprint([b"header"], [small, large])
    assert base == fingerprint([b"header"], [small, large])
    assert base != fingerprint([b"other"], [small, large])
    assert base != fingerprint([b"head", b"er"], [small, large])
    assert base != fingerprint([b"header"], [small, large[:-1]])
    assert base != fingerprint([b"header"], [large, small])
    for tensor, at in ((small, 50), (large, 0), (large, PAGE_BYTES - 1), (large, -1)):
        tensor[at] = 1
        assert base != fingerprint([b"header"], [small, large])
        tensor[at] = 0
