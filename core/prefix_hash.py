"""The hash chain that names the contents of KV blocks.

A block's KV depends on all tokens up to its end, so its name is a chain:

    root     = H(model and KV format)
    hash[i]  = H(hash[i - 1], token ids of block i, extras of the request)

H is BLAKE2b (RFC 7693) with 32 bytes: a collision would show one user's text to another, so it has
to be cryptographic. The parent and the token ids have fixed lengths and the extras come last, so no
two different inputs are laid out alike. Exercised by `pytest tests/unit/core/test_blocks.py`.
"""

from __future__ import annotations

from array import array
from hashlib import blake2b
from typing import NewType

BlockHash = NewType("BlockHash", bytes)

HASH_BYTES = 32


def root_hash(model: bytes, kv_format: bytes) -> BlockHash:
    """The parent of every first block: caches of other models or KV formats never match."""
    length = len(model).to_bytes(8, "little")
    return BlockHash(blake2b(length + model + kv_format, digest_size=HASH_BYTES).digest())


def extend_chain(
    chain: list[BlockHash],
    num_blocks: int,
    token_ids: list[int],
    block_size: int,
    *,
    root: BlockHash,
    extra: bytes,
) -> None:
    """Append to `chain` until it names the first `num_blocks` blocks of `token_ids`, all full."""
    begin = len(chain)
    if begin >= num_blocks:
        return
    parent = chain[-1] if chain else root
    tokens = array("i", token_ids[begin * block_size : num_blocks * block_size])
    data, block_bytes = tokens.tobytes(), block_size * tokens.itemsize
    for offset in range(0, len(data), block_bytes):
        content = parent + data[offset : offset + block_bytes] + extra
        parent = BlockHash(blake2b(content, digest_size=HASH_BYTES).digest())
        chain.append(parent)
