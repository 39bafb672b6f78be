"""Masks of rows: the same whether drafts are there or not, and one request's trouble is its own."""

import json
import time

import numpy as np
import pytest
from hasten.api.structured.compiler import Vocabulary, byte_vocabulary
from hasten.api.structured.json_schema import schema_grammar
from hasten.api.structured.masks import GrammarMasks
from hasten.core.params import GenerationParams
from hasten.core.protocols import MaskJob
from hasten.core.request import Request, RequestId
from hasten.kernels.step import U32

EOS, OTHER_EOS, MAX_TOKENS = 256, 260, 400
NUM_WORDS = 9  # a vocabulary of 288, wider than the tokeniser's
GRAMMAR = schema_grammar({"type": "object", "properties": {"a": {"type": "integer"}}})


@pytest.fixture(params=[True, False], ids=["beside the model", "before it"])
def masks(request: pytest.FixtureRequest) -> GrammarMasks:
    return GrammarMasks(byte_vocabulary, beside_model=request.param)


def request(name: str = "r", grammar: str = GRAMMAR, eos: tuple[int, ...] = (EOS,)) -> Request:
    params = GenerationParams(max_tokens=MAX_TOKENS, seed=0, eos_token_ids=eos, grammar=grammar)
    return Request(RequestId(name), name, (1, 2, 3), params, arrival=0)


def prepared(masks: GrammarMasks, *requests: Request) -> None:
    for each in requests:
        masks.prepare(each)
    while not all(masks.is_ready(each.request_id) for each in requests):
        masks.wait(1.0)


def rows_of(masks: GrammarMasks, *jobs: tuple[Request, bytes]) -> list[set[int]]:
    """The token ids that each row allows; rows of all jobs, in order."""
    listed, num_rows = [], 0
    for each, drafts in jobs:
        listed.append(MaskJob(each, list(drafts), num_rows))
        num_rows += len(drafts) + 1
    written: U32 = np.full((num_rows, NUM_WORDS), 7, np.uint32)
    ready = np.zeros(1, np.int32)
    masks.begin_masks(listed, written, ready)
    while not ready[0]:
        time.sleep(0.001)
    bits = np.unpackbits(written.view(np.uint8), axis=1, bitorder="little")
    return [set(np.flatnonzero(row).tolist()) for row in bits]


def test_rows_behind_drafts_are_those_without(masks: GrammarMasks) -> None:
    text = b'{"a": 12}'
    drafted, stepwise = request("drafted"), request("stepwise")
    prepared(masks, drafted, stepwise)
    together = rows_of(masks, (drafted, text))
    alone = []
    for byte in [*text, None]:
        alone += rows_of(masks, (stepwise, b""))
        stepwise.token_ids += [] if byte is None else [byte]
    assert together == alone
    assert together[-1] == {EOS}
    # Nothing was accepted: the next step begins where this one did.
    assert rows_of(masks, (drafted, b"")) == together[:1]


def test_behind_a_forbidden_draft_anything_goes(masks: GrammarMasks) -> None:
    one = request()
    prepared(masks, one)
    rows = rows_of(masks, (one, b"{x}"))
    assert ord("x") not in rows[1]
    assert [len(row) for row in rows[2:]] == [NUM_WORDS * 32] * 2
    one.token_ids += list(b"{")
    assert rows_of(masks, (one, b"")) == rows[1:2]


def test_the_end_has_the_names_that_the_request_knows(masks: GrammarMasks) -> None:
    both, none = request("both", eos=(EOS, OTHER_EOS)), request("other", eos=(OTHER_EOS,))
    prepared(masks, both, none)
    both.token_ids += list(b"{}")
    none.token_ids += list(b"{}")
    assert rows_of(masks, (both, b""), (none, b"")) == [{EOS, OTHER_EOS}, {OTHER_EOS}]


def test_drafted_ends_are_no_trouble(masks: GrammarMasks) -> None:
    one = request()
    prepared(masks, one)
    one.token_ids += list(b"{}")
    params_eos = [EOS, EOS]
    written: U32 = np.zeros((3, NUM_WORDS), np.uint32)
    ready = np.zeros(1, np.int32)
    masks.begin_masks([MaskJob(one, params_eos, 0)], written, ready)
    while not ready[0]:
        time.sleep(0.001)
    assert masks.failure(one.request_id) is None
    assert written[0].any()


def test_what_cannot_be_compiled_fails_its_request_alone(masks: GrammarMasks) -> None:
    bad, good = request("bad", grammar="start: nothing"), request("good")
    prepared(masks, bad, good)
    rows = rows_of(masks, (bad, b""), (good, b""))
    assert len(rows[0]) == NUM_WORDS * 32
    assert rows[1] == {ord("{")}
    assert "unknown name" in str(masks.failure(bad.request_id))
    assert masks.failure(good.request_id) is None


def test_a_token_that_was_not_allowed_fails_the_request(masks: GrammarMasks) -> None:
    one = request()
    prepared(masks, one)
    one.token_ids += list(b"x")
    rows_of(masks, (one, b""))
    assert masks.failure(one.request_id) == "a token was not allowed"
    masks.forget(one.request_id)
    assert masks.failure(one.request_id) is None


def test_a_vocabulary_that_does_not_load_fails_requests() -> None:
    def load() -> Vocabulary:
        raise ValueError("no tokeniser here")

    masks, one = GrammarMasks(load, beside_model=True), request()
    prepared(masks, one)
    rows_of(masks, (one, b""))
    assert masks.failure(one.request_id) == "no tokeniser here"


def test_an_output_reaches_its_end_within_the_limit(masks: GrammarMasks) -> None:
    """Of what is allowed always what never ends by itself: letters, where there may be any."""
    one = request(grammar=schema_grammar({"type": "array", "items": {"type": "string"}}))
    prepared(masks, one)
    while True:
        (allowed,) = rows_of(masks, (one, b""))
        token_id = max((i for i in allowed if chr(i) in 'a",['), default=max(allowed))
        if token_id == EOS:
            break
        one.token_ids.append(token_id)
    assert MAX_TOKENS - 40 < one.num_output_tokens < MAX_TOKENS
    json.loads(bytes(one.output_token_ids))
