"""The flat layout of a step, against layouts written out by hand.

Random plans are covered by `test_engine.py`, whose mock model checks every batch it gets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hasten.core.batch import BatchBuilder, scored_prompt_tokens
from hasten.core.params import GenerationParams
from hasten.core.plan import BlockCopy, PlannedRequest, StepPlan
from hasten.core.request import Request, RequestId
from hasten.kernels.program import Capacity
from hasten.kernels.step import I32, StepBatch
from hypothesis import given
from hypothesis import strategies as st

CAPACITY = Capacity(max_tokens=64, max_requests=4, max_logit_rows=64, max_model_len=64)


@dataclass(slots=True)
class FakeTables:
    """Two groups; request rK has row K and, in group g, blocks 10 K + 5 g + (0, 1, ...)."""

    block_size: int = 8

    @property
    def tables(self) -> tuple[I32, I32]:
        rows, columns = np.arange(4)[:, None], np.arange(8)[None, :]
        first = (10 * rows + columns).astype(np.int32)
        return first, first + np.int32(5)

    def table_row(self, request_id: RequestId) -> int:
        return int(request_id[1:])


def request_of(idx: int, prompt: list[int], output: list[int], **fields: Any) -> Request:
    return Request(
        request_id=RequestId(f"r{idx}"),
        group_id=f"r{idx}",
        prompt_token_ids=tuple(prompt),
        params=GenerationParams(**({"max_tokens": 20, "seed": 100 + idx} | fields)),
        arrival=idx,
        token_ids=[*prompt, *output],
    )


def plan_of(*planned: PlannedRequest, copies: tuple[BlockCopy, ...] = ()) -> StepPlan:
    return StepPlan(0, planned, copies, ())


def builder() -> BatchBuilder:
    return BatchBuilder(CAPACITY, 70, FakeTables())


def test_a_prompt_a_decode_and_a_verification_lie_end_to_end() -> None:
    requests = {
        r.request_id: r
        for r in (
            request_of(0, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10], []),
            request_of(2, [11, 12], [13], temperature=0.0),
            request_of(1, [21, 22, 23], [24], seed=7),
        )
    }
    requests[RequestId("r1")].draft_token_ids = [25, 26, 27]
    batch = builder().build(
        plan_of(
            PlannedRequest(RequestId("r0"), 6, 4, 0, 1),
            PlannedRequest(RequestId("r2"), 2, 1, 0, 1),
            PlannedRequest(RequestId("r1"), 3, 3, 2, 3),
        ),
        requests,
    )
    assert batch.token_ids.tolist() == [7, 8, 9, 10, 13, 24, 25, 26]
    assert batch.positions.tolist() == [6, 7, 8, 9, 2, 3, 4, 5]
    assert batch.query_starts.tolist() == [0, 4, 5, 8]
    assert batch.seq_lens.tolist() == [10, 3, 6]
    assert batch.table_rows.tolist() == [0, 2, 1]
    assert batch.logit_rows.tolist() == [3, 4, 5, 6, 7]
    first, second = batch.groups
    assert first.slot_mapping.tolist() == [6, 7, 8, 9, 162, 83, 84, 85]
    assert (second.slot_mapping - first.slot_mapping == 5 * 8).all()
    sampling = batch.sampling
    assert sampling.positions.tolist() == [10, 3, 4, 5, 6]
    assert sampling.temperature.tolist() == [1.0, 0.0, 1.0, 1.0, 1.0]
    assert sampling.seeds.tolist() == [100, 102, 7, 7, 7]
    assert sampling.target_ids.tolist() == [-1] * 5
    assert [sampling.counts, sampling.bias, sampling.masks] == [None] * 3


def test_a_chunk_in_the_middle_wants_no_logits() -> None:
    requests = {RequestId("r0"): request_of(0, list(range(20)), [])}
    batch = builder().build(plan_of(PlannedRequest(RequestId("r0"), 0, 8, 0, 0)), requests)
    assert batch.num_tokens == 8
    assert batch.num_logit_rows == 0
    assert len(batch.sampling.temperature) == 0


def test_decoding_takes_the_short_way_to_the_same_arrays() -> None:
    requests = {
        RequestId(f"r{i}"): request_of(i, [i + 1] * (i + 1), [50 + i], logprobs=i) for i in range(4)
    }
    planned = [PlannedRequest(r.request_id, r.num_tokens - 1, 1, 0, 1) for r in requests.values()]
    batch = builder().build(plan_of(*planned), requests)
    assert batch.token_ids.tolist() == [50, 51, 52, 53]
    assert batch.positions.tolist() == [1, 2, 3, 4]
    assert batch.query_starts.tolist() == [0, 1, 2, 3, 4]
    assert batch.seq_lens.tolist() == [2, 3, 4, 5]
    assert batch.logit_rows.tolist() == [0, 1, 2, 3]
    assert batch.sampling.num_logprobs.tolist() == [0, 1, 2, 3]


def arrays_of(batch: StepBatch) -> list[list[Any]]:
    found: list[npt.NDArray[Any]] = [
        batch.token_ids,
        batch.positions,
        batch.query_starts,
        batch.seq_lens,
    ]
    found += [batch.table_rows, batch.logit_rows]
    found += [array for g in batch.groups for array in (g.slot_mapping, g.block_copies)]
    sampling = batch.sampling
    found += [sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p]
    found += [sampling.repetition_penalty, sampling.frequency_penalty, sampling.presence_penalty]
    found += [sampling.seeds, sampling.positions, sampling.sample_idx]
    found += [sampling.num_logprobs, sampling.target_ids]
    for sparse in (sampling.counts, sampling.bias):
        if sparse is not None:
            found += [sparse.starts, sparse.token_ids, sparse.values]
    if sampling.mask_idx is not None and sampling.masks is not None:
        found += [sampling.mask_idx, sampling.masks[sampling.mask_idx]]
    return [array.tolist() for array in found]


STEPS = st.lists(
    st.tuples(
        st.sets(st.integers(0, 3), min_size=1),  # who decodes
        st.sampled_from(["decode"] * 6 + ["draft", "chunk", "copy", "replaced"]),
    ),
    max_size=40,
)


@given(STEPS)
def test_going_on_gives_the_arrays_of_a_fresh_start(steps: list[tuple[set[int], str]]) -> None:
    steady = builder()
    requests = {RequestId(f"r{i}"): request_of(i, [i + 1] * (5 * i + 2), []) for i in range(4)}
    for who, kind in steps:
        planned = []
        for i in sorted(who):
            request = requests[RequestId(f"r{i}")]
            if kind == "replaced":
                requests[request.request_id] = request = request_of(i, list(request.token_ids), [])
            num_drafts = 2 if kind == "draft" else 0
            request.draft_token_ids = [7, 8][:num_drafts]
            num_tokens = 1 + num_drafts if kind != "chunk" else 2
            start = request.num_tokens - num_tokens + num_drafts
            planned.append(
                PlannedRequest(request.request_id, start, num_tokens, num_drafts, 1 + num_drafts)
            )
        copies = (BlockCopy(0, 1, 2),) if kind == "copy" else ()
        plan = plan_of(*planned, copies=copies)
        assert arrays_of(steady.build(plan, requests)) == arrays_of(builder().build(plan, requests))
        for i in who:
            request = requests[RequestId(f"r{i}")]
            if request.num_tokens < 60:
                request.token_ids.append(40 + request.num_tokens)


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0.7, "top_k": 5, "top_p": 0.8, "min_p": 0.1, "logprobs": 2},
        {"presence_penalty": 1.0, "frequency_penalty": 0.5, "repetition_penalty": 1.2},
        {"logit_bias": {9: 1.5}},
        {"allowed_token_ids": (1, 2, 3)},
        {"prompt_logprobs": 2},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_a_lone_request_goes_on_with_drafts_as_from_a_fresh_start(fields: dict[str, Any]) -> None:
    """With none and up to 16, over the edges of blocks, to the last position that there is."""
    request = request_of(2, [1, 2, 3], [], max_tokens=80, **fields)
    requests = {request.request_id: request}
    lone = builder()
    for num_drafts in (0, 2, 16, 0, 5, 0, 1, 3, 9):
        num_drafts = min(num_drafts, 64 - request.num_tokens)  # noqa: PLW2901
        request.draft_token_ids = list(range(40, 40 + num_drafts))
        planned = PlannedRequest(
            request.request_id, request.num_tokens - 1, 1 + num_drafts, num_drafts, 1 + num_drafts
        )
        plan = plan_of(planned)
        assert arrays_of(lone.build(plan, requests)) == arrays_of(builder().build(plan, requests))
        request.token_ids += [*request.draft_token_ids, 50][: 64 - request.num_tokens]


def test_a_scored_prompt_takes_its_own_tokens() -> None:
    request = request_of(0, [1, 2, 3, 4], [], prompt_logprobs=2)
    whole = PlannedRequest(request.request_id, 0, 4, 0, 4)
    part = PlannedRequest(request.request_id, 1, 2, 0, 2)
    assert scored_prompt_tokens(whole, request) == range(1, 4)
    assert scored_prompt_tokens(part, request) == range(2, 4)
    batch = builder().build(plan_of(whole), {request.request_id: request})
    assert batch.sampling.target_ids.tolist() == [2, 3, 4, -1]
    assert batch.sampling.num_logprobs.tolist() == [2, 2, 2, -1]


def test_edits_sit_at_the_rows_of_their_request_alone() -> None:
    plain = request_of(0, [1], [2])
    edited = request_of(1, [3, 4], [3], presence_penalty=1.0, logit_bias={9: 1.5})
    edited.draft_token_ids = [6]
    requests = {plain.request_id: plain, edited.request_id: edited}
    batch = builder().build(
        plan_of(
            PlannedRequest(plain.request_id, 1, 1, 0, 1),
            PlannedRequest(edited.request_id, 2, 2, 1, 2),
        ),
        requests,
    )
    counts, bias = batch.sampling.counts, batch.sampling.bias
    assert counts is not None
    assert counts.starts.tolist() == [0, 0, 2, 5]
    assert counts.token_ids.tolist() == [3, 4, 3, 4, 6]
    assert counts.values.tolist() == [1.0, 0.0, 1.0, 0.0, 1.0]
    assert bias is not None
    assert bias.starts.tolist() == [0, 0, 1, 2]
    assert bias.values.tolist() == [1.5, 1.5]


def test_allowed_tokens_reach_their_rows_as_a_mask() -> None:
    free = request_of(0, [1], [])
    bound = request_of(1, [1], [], allowed_token_ids=(2, 64))
    requests = {free.request_id: free, bound.request_id: bound}
    planned = [PlannedRequest(r.request_id, 0, 1, 0, 1) for r in requests.values()]
    sampling = builder().build(plan_of(*planned), requests).sampling
    assert sampling.mask_idx is not None
    assert sampling.masks is not None
    assert sampling.mask_idx[0] == -1
    assert sampling.masks[sampling.mask_idx[1]].tolist() == [4, 0, 1]


def test_a_slot_forgets_its_former_request() -> None:
    made = builder()
    former = request_of(0, [1], [], logit_bias={3: 1.0}, prompt_logprobs=1, seed=1)
    latter = request_of(0, [1], [], seed=2)
    planned = PlannedRequest(RequestId("r0"), 0, 1, 0, 1)
    assert made.build(plan_of(planned), {former.request_id: former}).sampling.bias is not None
    sampling = made.build(plan_of(planned), {latter.request_id: latter}).sampling
    assert sampling.bias is None
    assert sampling.seeds.tolist() == [2]


def test_block_copies_go_to_their_group() -> None:
    request = request_of(0, [1], [])
    planned = PlannedRequest(request.request_id, 0, 1, 0, 1)
    copies = (BlockCopy(1, 4, 6), BlockCopy(0, 2, 3), BlockCopy(1, 5, 7))
    batch = builder().build(plan_of(planned, copies=copies), {request.request_id: request})
    first, second = batch.groups
    assert first.block_copies.tolist() == [[2, 3]]
    assert second.block_copies.tolist() == [[4, 6], [5, 7]]
