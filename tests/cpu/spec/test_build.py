"""From options to an engine that speculates."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hasten.api import draft_vocabulary
from hasten.api.engine import build_engine
from hasten.api.text import tokenizer
from hasten.core import build
from hasten.core.latency import StepTimeModel
from hasten.core.loading import LoadError
from hasten.core.options import (
    CacheOptions,
    ConfigurationError,
    EngineOptions,
    ExecutionOptions,
    ModelOptions,
    SpeculationOptions,
)
from hasten.core.params import GenerationParams
from hasten.spec import make_speculator

from tests.helpers.engines import ask, run_requests
from tests.helpers.hf_folders import write_folder
from tests.helpers.random_models import tiny_config


def options_of(method: str, depth: str = "auto") -> EngineOptions:
    return EngineOptions(
        model=ModelOptions(max_model_len=512),
        cache=CacheOptions(kv_cache_memory_bytes=64 * 2**20),
        speculation=SpeculationOptions(method, depth),
    )


def test_off_makes_none() -> None:
    assert make_speculator(options_of("off"), StepTimeModel()) is None


@pytest.mark.parametrize(
    ("method", "methods"),
    [("ngram", {"auto", "ngram"}), ("auto", {"auto", "ngram", "suffix"})],
)
def test_the_methods_of_a_server(method: str, methods: set[str]) -> None:
    speculator = make_speculator(options_of(method), StepTimeModel())
    assert speculator is not None
    assert speculator.methods == methods


def test_an_engine_drafts_what_repeats() -> None:
    try:
        engine = build_engine(options_of("auto", "4"))
    except LoadError as error:
        pytest.skip(str(error))
    params = GenerationParams(max_tokens=40, seed=1, temperature=0.0, ignore_eos=True)
    run_requests(engine, [ask("a", [28, 216, 33, 216, 34] * 6, params)])
    stats = engine.stats()
    assert stats.num_accepted_draft_tokens > 0
    assert stats.num_steps < 41


def test_a_model_drafts_for_itself() -> None:
    options = replace(
        options_of("off"),
        speculation=SpeculationOptions("draft", "3", spec_draft_model="embedded"),
        execution=ExecutionOptions(num_threads=1),
    )
    try:
        engine = build_engine(options)
    except LoadError as error:
        pytest.skip(str(error))
    params = GenerationParams(max_tokens=8, seed=1, temperature=0.8, ignore_eos=True)
    run_requests(engine, [ask("a", [28, 216, 33], params)])
    stats = engine.stats()
    assert stats.num_accepted_draft_tokens >= 0.9 * stats.num_draft_tokens > 0


def test_a_draft_model_of_another_vocabulary_is_refused_at_the_start(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, tiny_config())
    speculation = SpeculationOptions("draft", spec_draft_model=str(folder))
    options = replace(options_of("off"), speculation=speculation)
    try:
        with pytest.raises(ConfigurationError, match="vocabulary has 96 tokens, the model's 49152"):
            build.build_engine(options, make_speculator=make_speculator)
    except LoadError as error:
        pytest.skip(str(error))


def test_a_draft_model_whose_tokens_mean_something_else_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Fake:
        def __init__(self, tokens: list[bytes]) -> None:
            self.tokens = tokens
            self.vocab_size = len(tokens)

        def token_bytes(self, token_id: int) -> bytes:
            return self.tokens[token_id]

    known = {"embedded": Fake([b"a", b"b"]), "same": Fake([b"a", b"b"]), "not": Fake([b"a", b"c"])}
    monkeypatch.setattr(tokenizer, "load_tokenizer", known.__getitem__)
    for name in ("same", "not"):
        speculation = SpeculationOptions("draft", spec_draft_model=name)
        options = replace(options_of("off"), speculation=speculation)
        if name == "same":
            draft_vocabulary.check_draft_vocabulary(options)
            continue
        with pytest.raises(ConfigurationError, match="token 1 is b'c' there and b'b' here"):
            draft_vocabulary.check_draft_vocabulary(options)


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"spec_method": "draft"}, "needs a --spec-draft-model"),
        ({"spec_method": "ngram", "spec_eagle_head": "x"}, "--spec-eagle-head is of no use"),
    ],
)
def test_drafters_and_their_methods_go_together(fields: dict[str, str], complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        SpeculationOptions(**fields)  # type: ignore[arg-type]  # strings all


def test_core_alone_refuses_to_speculate() -> None:
    try:
        with pytest.raises(ConfigurationError, match="--spec-method ngram"):
            build.build_engine(options_of("ngram"))
    except LoadError as error:
        pytest.skip(str(error))
