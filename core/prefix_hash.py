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


def block_hash(parent: BlockHash, token_ids: list[int], extra: bytes) -> BlockHash:
    """The name of the block that holds `token_ids` and follows the block named `parent`."""
    tokens = array("i", token_ids).tobytes()
    return BlockHash(blake2b(parent + tokens + extra, digest_size=HASH_BYTES).digest())
