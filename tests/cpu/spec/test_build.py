"""From options to an engine that speculates."""

from __future__ import annotations

import pytest
from hasten.api.engine import build_engine
from hasten.core import build
from hasten.core.latency import StepTimeModel
from hasten.core.loading import LoadError
from hasten.core.options import (
    CacheOptions,
    ConfigurationError,
    EngineOptions,
    ModelOptions,
    SpeculationOptions,
)
from hasten.core.params import GenerationParams
from hasten.spec import make_speculator

from tests.helpers.engines import ask, run_requests


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


def test_core_alone_refuses_to_speculate() -> None:
    try:
        with pytest.raises(ConfigurationError, match="--spec-method ngram"):
            build.build_engine(options_of("ngram"))
    except LoadError as error:
        pytest.skip(str(error))
