"""N-gram and suffix proposers: whose text they see, what they keep, what they forget."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hasten.core.request import Request
from hasten.spec.ngram import NgramProposer
from hasten.spec.proposer import NO_DRAFT, Proposer
from hasten.spec.suffix import POOL_TOKENS, SuffixProposer

from tests.unit.spec.texts import request_of

SONG = list(range(100, 140))


def draft(proposer: Proposer, request: Request, depth: int = 4) -> Sequence[int]:
    return proposer.propose([request], [depth])[0].token_ids


@pytest.mark.parametrize("proposer", [NgramProposer(), SuffixProposer()], ids=["ngram", "suffix"])
def test_a_request_repeats_its_prompt(proposer: Proposer) -> None:
    request = request_of("a", [*SONG, 7, *SONG[:5]])
    assert draft(proposer, request) == SONG[5:9]
    request.token_ids += SONG[5:8]
    assert draft(proposer, request) == SONG[8:12]
    request.token_ids += [1, 2, 7]
    assert draft(proposer, request, depth=2) == SONG[:2]


@pytest.mark.parametrize("proposer", [NgramProposer(), SuffixProposer()], ids=["ngram", "suffix"])
def test_any_depths_side_by_side(proposer: Proposer) -> None:
    requests = [request_of(f"r{i}", [*SONG, *SONG[: 3 + i]]) for i in range(4)]
    drafts = proposer.propose(requests, [0, 3, 16, 1])
    assert [len(each.token_ids) for each in drafts] == [0, 3, 16, 1]
    assert [len(each.confidences) for each in drafts] == [0, 3, 16, 1]
    assert drafts[0] is NO_DRAFT


def test_ngram_sees_one_request_only() -> None:
    proposer = NgramProposer()
    draft(proposer, request_of("a", SONG))
    assert draft(proposer, request_of("b", [1, 2, *SONG[:5]])) == ()


def test_suffix_sees_all_requests_of_a_salt_also_ended_ones() -> None:
    proposer = SuffixProposer()
    first = request_of("a", SONG, salt="x")
    draft(proposer, first)
    assert draft(proposer, request_of("b", SONG[:5], salt="x")) == SONG[5:9]
    proposer.forget(first.request_id)
    assert draft(proposer, request_of("c", SONG[:5], salt="x")) == SONG[5:9]


@pytest.mark.parametrize(("one", "other"), [("x", "y"), ("", "x"), ("x", "")])
def test_no_text_crosses_a_salt(one: str, other: str) -> None:
    proposer = SuffixProposer()
    draft(proposer, request_of("a", SONG, salt=one))
    assert draft(proposer, request_of("b", SONG[:5], salt=other)) == ()


def test_suffix_prefers_what_is_frequent() -> None:
    proposer = SuffixProposer()
    for i, tail in enumerate(([1, 1], [2, 2], [2, 2], [2, 2], [3, 3])):
        draft(proposer, request_of(f"r{i}", [50, 51, 52, *tail]))
    found = proposer.propose([request_of("new", [50, 51, 52])], [2])[0]
    assert found.token_ids == [2, 2]
    assert found.confidences[0] < found.confidences[1]


def test_memory_is_bounded_and_useful_text_stays() -> None:
    """Ten times the bound of text no one repeats, beside a song that everyone does."""
    rng = random.Random(0)
    proposer = SuffixProposer(max_tokens=2000)
    for i in range(100):
        noise = [rng.randrange(1000, 100_000) for _ in range(200)]
        request = request_of(f"r{i}", [*noise, *SONG[:5]])
        if i:
            assert draft(proposer, request) == SONG[5:9]
        request.token_ids += SONG[5:]
        draft(proposer, request)
        proposer.forget(request.request_id)
        assert proposer.num_tokens <= 2000 + 250 + POOL_TOKENS


def test_many_salts_are_bounded_too() -> None:
    proposer = SuffixProposer(max_tokens=500)
    for i in range(300):
        request = request_of(f"r{i}", [1], salt=str(i))
        draft(proposer, request)
        proposer.forget(request.request_id)
        assert proposer.num_tokens <= 500
    assert len(proposer._pools) <= 500 // POOL_TOKENS


def test_running_requests_are_not_indexed_again() -> None:
    """More running text than the bound: it stays, for dropping it would repeat the work."""
    proposer = SuffixProposer(max_tokens=100)
    requests = [request_of(f"r{i}", [*SONG, *SONG[:5]], salt=str(i)) for i in range(20)]
    for _ in range(3):
        drafts = proposer.propose(requests, [4] * 20)
        assert all(each.token_ids == SONG[5:9] for each in drafts)
    num_tokens = proposer.num_tokens
    proposer.propose(requests, [4] * 20)
    assert proposer.num_tokens == num_tokens
    for request in requests:
        proposer.forget(request.request_id)
    draft(proposer, request_of("last", SONG))
    assert proposer.num_tokens <= 100


@pytest.mark.parametrize("proposer", [NgramProposer(), SuffixProposer()], ids=["ngram", "suffix"])
def test_forgetting_the_unknown_is_ignored(proposer: Proposer) -> None:
    request = request_of("gone", SONG)
    proposer.forget(request.request_id)
    draft(proposer, request)
    proposer.forget(request.request_id)
    proposer.forget(request.request_id)
