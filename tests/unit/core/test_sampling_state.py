"""Penalties, bias, bad words and minimum length at the row behind any number of drafts."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hasten.core.params import GenerationParams
from hasten.core.request import Request, RequestId
from hasten.core.sampling_state import Entries, RowEdits, SlotParameters, TokenCounts
from hypothesis import given
from hypothesis import strategies as st

TOKENS = st.lists(st.integers(0, 9), max_size=12)


def request_of(prompt: list[int], output: list[int], **fields: Any) -> Request:
    params = GenerationParams(**({"max_tokens": 50, "seed": 1} | fields))
    return Request(
        request_id=RequestId("r"),
        group_id="r",
        prompt_token_ids=tuple(prompt),
        params=params,
        arrival=0,
        token_ids=[*prompt, *output],
    )


def as_dict(entries: Entries | None) -> dict[int, float]:
    if entries is None:
        return {}
    ids, values = entries
    assert len(set(ids.tolist())) == len(ids)
    return dict(zip(ids.tolist(), values.tolist(), strict=True))


@given(prompt=TOKENS, pushed=TOKENS)
def test_counts_pushed_are_taken_back_by_pops(prompt: list[int], pushed: list[int]) -> None:
    counts = TokenCounts(prompt)
    before = as_dict(counts.entries())
    news = []
    for token_id in pushed:
        news.append(token_id not in counts)
        counts.push(token_id)
    assert as_dict(counts.entries()) == dict.fromkeys(prompt, 0) | Counter(pushed)
    for token_id, was_new in zip(reversed(pushed), reversed(news), strict=True):
        counts.pop(token_id, was_new=was_new)
    assert as_dict(counts.entries()) == before


@given(prompt=TOKENS.filter(bool), output=TOKENS, drafts=TOKENS, more=TOKENS)
def test_every_row_sees_the_drafts_before_it(
    prompt: list[int], output: list[int], drafts: list[int], more: list[int]
) -> None:
    request = request_of(prompt, output, presence_penalty=1.0)
    edits = RowEdits(request)
    for _ in range(2):  # the second time nothing of the drafts may be left
        rows = [as_dict(row) for row in edits.counts(drafts)]
        for i, row in enumerate(rows):
            seen = Counter(request.output_token_ids + drafts[:i])
            assert row == dict.fromkeys(prompt, 0) | seen
        request.token_ids.extend(more)


def test_requests_without_edits_need_no_state() -> None:
    assert not RowEdits.needed_by(GenerationParams(max_tokens=1, seed=1, temperature=0.3, top_k=5))


@pytest.mark.parametrize(
    "fields",
    [
        {"presence_penalty": 0.1},
        {"frequency_penalty": -0.1},
        {"repetition_penalty": 1.1},
        {"logit_bias": {1: 1.0}},
        {"bad_words": ((1,),)},
        {"min_tokens": 1},
    ],
)
def test_requests_with_edits_need_state(fields: dict[str, Any]) -> None:
    assert RowEdits.needed_by(GenerationParams(max_tokens=1, seed=1, **fields))


def test_terminal_tokens_are_forbidden_below_min_tokens() -> None:
    request = request_of([5], [1], min_tokens=3, eos_token_ids=(0,), stop_token_ids=(7,))
    rows = [as_dict(row) for row in RowEdits(request).bias([2, 3, 4])]
    banned = {0: -math.inf, 7: -math.inf}
    assert rows == [banned, banned, {}, {}]


def test_a_bad_word_is_forbidden_where_its_beginning_stands() -> None:
    request = request_of([5, 1], [], bad_words=((1, 2, 3), (4,)), logit_bias={3: 2.0})
    rows = [as_dict(row) for row in RowEdits(request).bias([2, 9, 1])]
    always = {3: 2.0, 4: -math.inf}
    assert rows == [always, always | {3: -math.inf}, always, always]


def test_slots_hold_what_was_bound_last() -> None:
    slots = SlotParameters(num_slots=3, vocab_size=70)
    slots.bind(1, request_of([1], [], temperature=0.5, top_k=7, seed=2**63 + 1, logprobs=2))
    floats, ints, seeds = slots.take(np.array([1, 1], np.int32))
    assert floats[0].tolist() == [0.5, 0.5]
    assert ints.tolist() == [[7, 7], [0, 0], [2, 2], [-1, -1]]
    assert seeds.tolist() == [2**63 + 1] * 2
    assert not slots.any_mask


def test_masks_come_and_go_with_their_request() -> None:
    slots = SlotParameters(num_slots=2, vocab_size=70)
    slots.bind(0, request_of([1], [], allowed_token_ids=(0, 33, 69)))
    assert slots.any_mask
    assert slots.masks is not None
    assert slots.masks[0].tolist() == [1, 2, 1 << 5]
    slots.bind(0, request_of([1], [], allowed_token_ids=(1,)))
    assert slots.masks[0].tolist() == [2, 0, 0]
    slots.bind(0, request_of([1], []))
    assert not slots.any_mask
