"""A hash that tells one set of weights from another, cheap enough for every start.

It covers all of the header (names, shapes, types, places) and, of each tensor, all bytes up to
1 MiB, else 16 spread pages of 4 KiB, the first and the last among them: training or quantising
again changes numbers everywhere. It does not see a change confined to unsampled pages of one large
tensor. The embedded model takes about 0.03 s. Exercised by
`pytest tests/unit/loading/test_fingerprint.py`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

WHOLE_BYTES = 1 << 20
PAGE_BYTES = 4096
NUM_PAGES = 16


def fingerprint(headers: Iterable[bytes], tensors: Iterable[npt.NDArray[np.uint8]]) -> str:
    """Hexadecimal SHA-256 over headers and sampled tensor bytes, in the order given."""
    digest = hashlib.sha256()
    for header in headers:
        digest.update(len(header).to_bytes(8, "little"))
        digest.update(header)
    for tensor in tensors:
        data = tensor.reshape(-1)
        digest.update(data.size.to_bytes(8, "little"))
        for page in _sampled(data):
            digest.update(page.data)
    return digest.hexdigest()


def _sampled(data: npt.NDArray[np.uint8]) -> list[npt.NDArray[np.uint8]]:
    if data.size <= WHOLE_BYTES:
        return [data]
    starts = np.linspace(0, data.size - PAGE_BYTES, NUM_PAGES).astype(np.int64)
    return [data[start : start + PAGE_BYTES] for start in starts]
