"""What one step computes, as flat numpy arrays: the only thing that reaches a backend.

    requests     r0          r1    r2
    token_ids    [a b c d e] [f]   [g h]        T = 8 tokens
    query_starts 0           5     6     8      R + 1 = 4
    logit_rows           4    5       7         L = 3 rows that want logits

Arrays are views into buffers owned by whoever built the batch and are valid until the next batch
is built. Nothing here is a torch tensor. Exercised by `pytest tests/unit/core/test_batch.py`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import ml_dtypes
    import numpy as np
    import numpy.typing as npt

# Texts, for the HTTP process reads a constant of this module and is smaller without numpy.
I32: TypeAlias = "npt.NDArray[np.int32]"
U32: TypeAlias = "npt.NDArray[np.uint32]"
U64: TypeAlias = "npt.NDArray[np.uint64]"
F32: TypeAlias = "npt.NDArray[np.float32]"
BF16: TypeAlias = "npt.NDArray[ml_dtypes.bfloat16]"

MAX_LOGPROBS = 20
"""The most alternatives per position that a request may ask for (as OpenAI's API)."""


@dataclass(slots=True)
class GroupTables:
    """Where the tokens of a step live in one KV group.

    Slot = block_id * block_size + offset. Block 0 is the null block: never owned by a request,
    it stands for blocks that a window has left behind and takes the writes of padding.
    """

    slot_mapping: I32  # [T]
    block_tables: I32  # [num_table_rows, max_blocks]; entries past a request's length: undefined
    block_copies: I32  # [C, 2] (source, destination), carried out before anything else


MASK_POLL_S = 20e-6


@dataclass(slots=True)
class SparseRows:
    """Per logit row a list of (token id, value): row l owns entries starts[l] .. starts[l + 1]."""

    starts: I32  # [L + 1]
    token_ids: I32  # [num_entries]
    values: F32  # [num_entries]


@dataclass(slots=True)
class SamplingRows:
    """One sampling record per logit row (see `ops.Sample` for their meaning).

    Masks may be written by another thread while the model runs, so whoever samples waits until
    `masks_ready` says so.
    """

    temperature: F32  # [L], 0 = greedy
    top_k: I32  # [L], 0 = off
    top_p: F32  # [L], 1 = off
    min_p: F32  # [L], 0 = off
    repetition_penalty: F32  # [L], 1 = off
    frequency_penalty: F32  # [L], 0 = off
    presence_penalty: F32  # [L], 0 = off
    seeds: U64  # [L]
    positions: I32  # [L], absolute position of the token being chosen
    sample_idx: I32  # [L], which of a request's n samples
    num_logprobs: I32  # [L], -1 = none, k = the chosen token's and the k most likely
    target_ids: I32  # [L], -1 = sample, else the token to score
    counts: SparseRows | None = None  # seen tokens -> times in the output (0: prompt only)
    bias: SparseRows | None = None  # token -> added to its logit; -inf forbids it
    mask_idx: I32 | None = None  # [L] row of `masks`, -1 = none
    masks: U32 | None = None  # [M, ceil(vocab / 32)], bit id % 32 of word id // 32 = allowed
    masks_ready: I32 | None = None  # [1], nonzero once `masks` are written; None: they are already

    def wait_for_masks(self) -> None:
        """Return once `masks` are written."""
        while self.masks_ready is not None and not self.masks_ready[0]:
            time.sleep(MASK_POLL_S)


@dataclass(slots=True)
class StepBatch:
    """One step, laid out flat."""

    token_ids: I32  # [T]
    positions: I32  # [T]
    query_starts: I32  # [R + 1]
    seq_lens: I32  # [R] tokens in the cache once this step has written its own
    table_rows: I32  # [R] row of every group's `block_tables` that belongs to the request
    groups: tuple[GroupTables, ...]  # by KV group
    logit_rows: I32  # [L] row of T whose logits are wanted
    sampling: SamplingRows

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_requests(self) -> int:
        return len(self.seq_lens)

    @property
    def num_logit_rows(self) -> int:
        return len(self.logit_rows)


@dataclass(slots=True)
class StepResult:
    """What a step chose. Rows without log-probabilities hold NaN there and -1 as ids."""

    token_ids: I32  # [L]
    logprobs: F32  # [L] of the chosen token, natural log, raw logits
    top_ids: I32  # [L, K], K = the largest num_logprobs in the batch (0 if none)
    top_logprobs: F32  # [L, K], most likely first
