from typing import Any

import pytest
from hasten.api.params import RequestContext, SamplingParams
from hasten.core.params import Beam, GenerationParams, InvalidParameterError

from tests.helpers.fake_engine import EOS_ID, ByteTokenizer

CONTEXT = RequestContext(
    tokenizer=ByteTokenizer(), eos_token_ids=(EOS_ID,), default_max_tokens=100, seed=9
)
# Made by `resolve` from what only the API knows.
DERIVED = {"eos_token_ids"}


def test_defaults() -> None:
    assert SamplingParams().resolve(CONTEXT) == GenerationParams(
        max_tokens=100, seed=9, eos_token_ids=(EOS_ID,)
    )


def test_every_parameter_of_the_engine_can_be_asked_for() -> None:
    public = set(SamplingParams.__struct_fields__)
    assert set(GenerationParams.__struct_fields__) - DERIVED <= public
    assert public - set(GenerationParams.__struct_fields__) == {
        "stop",
        "include_stop_str_in_output",
        "skip_special_tokens",
    }


def test_what_is_given_is_kept() -> None:
    params = SamplingParams(
        max_tokens=5, seed=0, top_k=7, n=2, logit_bias={3: -1.0}, stop_token_ids=(4,), logprobs=0
    ).resolve(CONTEXT)
    assert (params.max_tokens, params.seed, params.top_k, params.n) == (5, 0, 7, 2)
    assert (params.logit_bias, params.stop_token_ids, params.logprobs) == ({3: -1.0}, (4,), 0)


def test_minus_one_switches_top_k_off() -> None:
    assert SamplingParams(top_k=-1).resolve(CONTEXT).top_k == 0


def test_bad_words_are_forbidden_at_the_start_and_after_a_space() -> None:
    assert SamplingParams(bad_words=("ab",)).resolve(CONTEXT).bad_words == (
        tuple(b" ab"),
        tuple(b"ab"),
    )
    assert SamplingParams(bad_words=(" ab",)).resolve(CONTEXT).bad_words == (tuple(b" ab"),)


def test_stop_rules() -> None:
    rules = SamplingParams(stop=("x",), min_tokens=3, include_stop_str_in_output=True).stop_rules(
        (EOS_ID,)
    )
    assert (rules.stop_strings, rules.min_tokens, rules.include_stop) == (("x",), 3, True)
    assert rules.eos_token_ids == {EOS_ID}


@pytest.mark.parametrize(
    ("params", "field"),
    [
        (SamplingParams(stop=("",)), "stop"),
        (SamplingParams(stop=("x" * 2000,)), "stop"),
        (SamplingParams(stop=("x",) * 100), "stop"),
        (SamplingParams(bad_words=("x",) * 2000), "bad_words"),
        (SamplingParams(bad_words=(" ",)), "bad_words"),
        (SamplingParams(bad_words=("x" * 300,)), "bad_words"),
        (SamplingParams(temperature=3.0), "temperature"),
    ],
)
def test_out_of_range_names_the_field(params: SamplingParams, field: str) -> None:
    with pytest.raises(InvalidParameterError) as caught:
        params.resolve(CONTEXT)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"max_tokens": 4.0}, "max_tokens"),
        ({"temperature": "hot"}, "temperature"),
        ({"stop": "end"}, "stop"),
        ({"logit_bias": {3: "much"}}, "logit_bias[...]"),
        ({"beam": Beam(width=2.0)}, "beam.width"),  # type: ignore[arg-type]  # as people write it
        ({"beam": Beam(width=2, early_stopping=1)}, "beam.early_stopping"),  # type: ignore[arg-type]  # this too
        ({"n": object()}, "params"),
    ],
)
def test_a_wrong_type_from_python_names_the_field(wrong: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidParameterError) as caught:
        SamplingParams(**wrong).resolve(CONTEXT)
    assert caught.value.field == field
