"""Steps over given token ids: every sequence in blocks of its own."""

from __future__ import annotations

import numpy as np
from hasten.core.prompt_batch import PromptChunk, PromptLayout
from hasten.kernels.dtypes import DType
from hasten.kernels.program import KVGroupSpec

GROUP = KVGroupSpec(num_layers=2, num_kv_heads=1, head_size=8, dtype=DType.F32)
LAYOUT = PromptLayout((GROUP, GROUP), num_requests=2, max_len=20, block_size=8)


def tokens(*ids: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.array(ids, np.int32)


def test_sequences_lie_end_to_end() -> None:
    batch = LAYOUT.batch([PromptChunk(tokens(5, 6, 7)), PromptChunk(tokens(8, 9))])
    assert batch.token_ids.tolist() == [5, 6, 7, 8, 9]
    assert batch.positions.tolist() == [0, 1, 2, 0, 1]
    assert batch.query_starts.tolist() == [0, 3, 5]
    assert batch.seq_lens.tolist() == [3, 2]
    assert batch.num_logit_rows == 0
    assert len(batch.groups) == 2


def test_blocks_are_private_and_never_the_null_block() -> None:
    batch = LAYOUT.batch(
        [PromptChunk(tokens(*range(20))), PromptChunk(tokens(*range(4)), start=16)]
    )
    group = batch.groups[0]
    assert group.block_tables.tolist() == [[1, 2, 3], [4, 5, 6]]
    for row, position, slot in zip(
        [0] * 20 + [1] * 4, batch.positions, group.slot_mapping, strict=True
    ):
        assert slot == group.block_tables[row, position // 8] * 8 + position % 8
    assert LAYOUT.kv_plan().num_blocks == (7, 7)


def test_chunks_that_want_logits_want_them_in_every_row() -> None:
    batch = LAYOUT.batch(
        [PromptChunk(tokens(1, 2)), PromptChunk(tokens(3, 4, 5), start=2, wants_logits=True)]
    )
    assert batch.logit_rows.tolist() == [2, 3, 4]
    assert batch.sampling.positions.tolist() == [3, 4, 5]
    assert batch.seq_lens.tolist() == [2, 5]
