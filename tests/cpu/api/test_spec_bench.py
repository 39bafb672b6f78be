"""`hasten bench spec`, on a tiny model and a few tokens."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest
from click.testing import CliRunner
from hasten.api import spec_bench
from hasten.api.cli.main import main
from hasten.api.spec_bench import (
    SpecBenchOptions,
    SpecRow,
    comparisons,
    prompts_of,
    run_spec_bench,
)
from hasten.api.spec_bench_report import comparison_table, markdown_table, plot
from hasten.core.loading import LoadError
from hasten.core.options import (
    CacheOptions,
    ConfigurationError,
    EngineOptions,
    ExecutionOptions,
    ModelOptions,
)


def row(configuration: str, load: int, tokens_per_s: float) -> SpecRow:
    return SpecRow(
        prompts="chat",
        load=load,
        configuration=configuration,
        rates=(tokens_per_s - 10, tokens_per_s, tokens_per_s + 20),
        ratio=tokens_per_s / 100,
        ratio_range=(0.9, 1.3),
        itl_ms=(10.0, 20.0),
        depth=1.5,
        acceptance=0.5,
    )


def test_configurations() -> None:
    assert SpecBenchOptions().configurations == ["off", "auto:auto"]
    full = SpecBenchOptions(methods="ngram,auto", full=True)
    assert len(full.configurations) == 11
    assert full.sizes == [1, 2, 4, 8, 16, 32]
    assert SpecBenchOptions(depths="2,auto").configurations == ["off", "auto:2", "auto:auto"]
    for wrong in ({"loads": "1,x"}, {"depths": "deep"}, {"repeats": 0}, {"max_tokens": 1}):
        with pytest.raises(ConfigurationError):
            SpecBenchOptions(**wrong)


def test_reports() -> None:
    rows = [row(name, load, 100.0 * load) for name in ("off", "auto:auto") for load in (1, 8)]
    table = markdown_table(rows)
    assert (
        "| chat | 8 | auto:auto | 800 | 8.00 (0.90 to 1.30) | 10.0, p99 20.0 | 1.50 | 50% |"
        in table
    )
    picture = plot(rows)
    assert picture.startswith("<svg")
    assert picture.count("<polyline") == 4
    assert "1.5" in picture, "the depth that was chosen"


def test_auto_is_compared_with_the_fastest_of_the_others() -> None:
    rows = [
        row(name, load, rate)
        for load in (1, 8)
        for name, rate in (("off", 100.0 * load), ("ngram:2", 110.0), ("ngram:auto", 121.0))
    ]
    one, eight = comparisons(rows)
    assert (one.load, one.against) == (1, "ngram:2")
    assert one.ratio == pytest.approx(1.1)
    assert one.at_least == pytest.approx(141 / 130, abs=1e-3)
    assert eight.against == "off"
    assert eight.ratio == pytest.approx(121 / 800)
    assert "| chat | 1 | ngram:auto | ngram:2 | 1.100 | 1.085 |" in comparison_table([one, eight])


def test_a_run_on_the_embedded_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spec_bench, "RANDOM_PROMPT_LEN", 8)
    prompts = tmp_path / "prompts"
    prompts.write_text("Say: one two three one two three one two three.\nCount.\n")
    engine = EngineOptions(
        model=ModelOptions(max_model_len=128),
        cache=CacheOptions(kv_cache_memory_bytes=32 << 20),
        execution=ExecutionOptions(num_threads=1),
    )
    options = SpecBenchOptions(
        loads="2",
        methods="ngram",
        prompts=f"{prompts},random",
        max_tokens=8,
        repeats=2,
        clock="cpu",
    )
    told: list[str] = []
    try:
        rows = list(run_spec_bench(engine, options, told.append))
    except LoadError as error:
        pytest.skip(str(error))
    assert [(r.prompts, r.configuration) for r in rows] == [
        (kind, name) for kind in (str(prompts), "random") for name in ("off", "ngram:auto")
    ]
    assert all(r.tokens_per_s > 0 and r.itl_ms[0] > 0 for r in rows)
    assert rows[0].ratio == 1.0
    assert len(told) == 4
    copies = list(islice(prompts_of("copy", engine, 49152), 2))
    assert copies[0] != copies[1]
    with pytest.raises(ConfigurationError, match="no_such_file"):
        next(prompts_of("no_such_file", engine, 49152))


def test_flags_that_would_be_ignored_are_refused() -> None:
    result = CliRunner().invoke(main, ["bench", "spec", "--spec-depth", "3"])
    assert result.exit_code == 2
    assert "--spec-depth: what is compared is said by --methods" in result.output
