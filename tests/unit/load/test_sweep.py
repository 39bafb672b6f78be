"""Sweeps: their points, what is kept of them, and where the knee is."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from hasten.api.cli.main import main
from hasten.core.options import ConfigurationError
from hasten.evals.load.bench import LoadOptions
from hasten.evals.load.knee import knee
from hasten.evals.load.summary import LoadSummary, Percentiles, Targets
from hasten.evals.load.sweep import (
    Asked,
    SweepOptions,
    SweepPoint,
    asked_points,
    server_grid,
    sweep,
)

from tests.unit.load.test_load import refusing, serving, three_tokens

LOAD = LoadOptions(num_requests=3, input_len=4, output_len=3, warmup=0)


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine stalls this client; no figure of these tests matters."""
    monkeypatch.setattr("hasten.evals.load.run.MAX_STALL_S", 60.0)


@contextmanager
def answering(handler: object = three_tokens) -> Iterator[str]:
    """A scripted server in a thread; yields its URL."""
    loop = asyncio.new_event_loop()
    urls: list[str] = []
    begun, end = threading.Event(), asyncio.Event()

    async def serve() -> None:
        async with serving(handler) as url:  # type: ignore[arg-type]  # either scripted handler
            urls.append(url)
            begun.set()
            await end.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        assert begun.wait(30)
        yield urls[0]
    finally:
        loop.call_soon_threadsafe(end.set)
        thread.join()
        loop.close()


def outcomes(points: list[Asked], folder: Path) -> list[str]:
    seen: list[str] = []
    sweep(points, None, folder, lambda _, outcome: seen.append(outcome))
    return seen


def test_a_sweep_goes_on_where_it_ended(tmp_path: Path) -> None:
    loads = SweepOptions(concurrencies="1,2").loads(LOAD)
    with answering() as url:
        points = asked_points(url, [()], loads)
        assert outcomes(points[:1], tmp_path) == ["measured"]
        assert outcomes(points, tmp_path) == ["kept", "measured"]
        # Half a file, as a full disk or an older layout leaves it, is measured again.
        (tmp_path / "points" / f"{points[0].key}.json").write_text('{"schema"')
        assert outcomes(points, tmp_path) == ["kept", "measured"]
        changed = [replace(points[1], load=replace(points[1].load, output_len=2))]
        assert outcomes(changed, tmp_path) == ["measured"]


def test_a_point_that_fails_is_named_and_not_kept(tmp_path: Path) -> None:
    with answering(refusing) as url:
        points = asked_points(url, [()], [LOAD])
        result = sweep(points, None, tmp_path, lambda *_: None)
    assert result.points == []
    assert result.failed[0].startswith(f"{url}, 1 client: no request was answered: HTTP 400")
    assert not list((tmp_path / "points").iterdir())


def test_the_grid_is_every_combination() -> None:
    grid = server_grid(("--dtype", "float32"), ("--max-num-seqs=8,32", "--block-size=16,32"))
    assert len(grid) == 4
    assert grid[1] == ("--dtype", "float32", "--max-num-seqs=8", "--block-size=32")
    with pytest.raises(ConfigurationError, match="--grid must be like"):
        server_grid((), ("max-num-seqs",))


@pytest.mark.parametrize("text", ["1,x", "0,1", "", "1.5"])
def test_wrong_loads_are_named(text: str) -> None:
    with pytest.raises(ConfigurationError, match="--concurrencies must be"):
        SweepOptions(concurrencies=text)


def test_rates_make_open_loops() -> None:
    loads = SweepOptions(request_rates="0.5,2").loads(LOAD)
    assert [load.request_rate for load in loads] == [0.5, 2.0]


def point(tokens_per_s: float, p99_ms: float, targets: Targets | None = None) -> SweepPoint:
    latency = Percentiles(*[p99_ms] * 5)
    summary = LoadSummary(
        workload="made up",
        num_ok=1,
        num_failed=0,
        errors=[],
        duration_s=1.0,
        num_prompt_tokens=1,
        num_cached_tokens=0,
        num_output_tokens=1,
        output_tokens_per_s=tokens_per_s,
        requests_per_s=1.0,
        goodput_per_s=1.0,
        targets=targets or Targets(),
        ttft_ms=latency,
        itl_ms=latency,
        tpot_ms=latency,
        e2e_ms=latency,
        send_lag_ms=latency,
        client_stall_p99_ms=0.0,
    )
    return SweepPoint(server="s", load=f"{tokens_per_s}", summary=summary)


CURVE = [(100.0, 5.0), (200.0, 6.0), (390.0, 8.0), (400.0, 40.0)]


def test_the_knee_is_where_latency_takes_off() -> None:
    assert knee([point(*values) for values in CURVE]) == point(390.0, 8.0)
    assert knee([point(100.0, 5.0)]) == point(100.0, 5.0)


def test_with_targets_the_knee_is_the_fastest_that_keeps_them() -> None:
    targets = Targets(ttft_ms=7.0)
    curve = [point(*values, targets) for values in CURVE]
    assert knee(curve) == point(200.0, 6.0, targets)
    assert knee([point(*values, Targets(ttft_ms=1.0)) for values in CURVE]) is None


def test_the_command_writes_figures_and_a_plot(tmp_path: Path) -> None:
    flags = ["--num-requests", "2", "--concurrencies", "1,2", "--warmup", "0", "--ttft-target-ms"]
    with answering() as url:
        command = ["bench", "sweep", "--url", url, "--output", str(tmp_path), *flags, "0.001"]
        result = CliRunner().invoke(main, command)
    assert result.exit_code == 0, result.output
    assert "no point keeps the targets" in result.output
    assert (tmp_path / "sweep.json").stat().st_size > 100
    assert (tmp_path / "sweep.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--url", "http://x", "--dtype", "float32"), "--url takes no server flags"),
        (("--concurrencies", "many"), "--concurrencies must be numbers"),
        (("--grid", "x"), "--grid must be like"),
    ],
)
def test_wrong_flags(arguments: tuple[str, ...], message: str) -> None:
    result = CliRunner().invoke(main, ["bench", "sweep", *arguments])
    assert result.exit_code == 2
    assert message in result.output
