"""Log lines, recent latencies, and metrics under two names."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import AsyncGenerator
from pathlib import Path

import httpx
import pytest
from hasten.api.http.metrics import Metrics
from hasten.api.observability.log_lines import JsonLines
from hasten.api.observability.phases import Phases, RequestClock
from hasten.api.observability.recent import RecentLatency
from hasten.api.observability.request_log import RequestLog
from hasten.api.security.caller import Caller, caller, calling
from hasten.api.security.keys import Key
from hasten.api.text.sample_text import SampleDelta
from hasten.core.messages import AddRequest
from hasten.core.params import Beam, GenerationParams
from prometheus_client import CollectorRegistry

from tests.helpers.fake_engine import ByteTokenizer

BEAM_PARAMS = GenerationParams(max_tokens=9, seed=0, n=2, beam=Beam(width=3))


def test_lines_are_objects_with_the_fields_of_a_record(caplog: pytest.LogCaptureFixture) -> None:
    who = Caller(Key("alice"), num_prompt_tokens=3, num_output_tokens=5, ttft_s=0.25)
    who.prompts.append(list(b"secret"))
    with caplog.at_level(logging.INFO, logger="hasten.requests"):
        RequestLog(with_prompts=False).write(who, ByteTokenizer())
        RequestLog(with_prompts=True).write(who, ByteTokenizer())
    quiet, loud = (json.loads(JsonLines().format(record)) for record in caplog.records)
    assert quiet["key"] == "alice"
    assert (quiet["prompt_tokens"], quiet["output_tokens"], quiet["ttft_ms"]) == (3, 5, 250.0)
    assert "secret" not in json.dumps(quiet)
    assert loud["prompts"] == ["secret"]


def test_a_traceback_stays_on_its_line() -> None:
    error = ValueError("broken\nin two")
    info = (ValueError, error, None)
    record = logging.LogRecord("a", logging.ERROR, "f", 1, "it %s", ("failed",), info)
    line = JsonLines().format(record)
    assert "\n" not in line
    assert json.loads(line)["message"] == "it failed"
    assert "broken" in json.loads(line)["traceback"]


def delta(num_tokens: int, sample_idx: int = 0, queue_s: float | None = None) -> SampleDelta:
    return SampleDelta(sample_idx, "", (), num_tokens, 0, queue_s=queue_s)


def observed(phases: Phases) -> dict[str, float]:
    """The sums of the histograms in which there is anything."""
    found = {}
    for name, histogram in phases.by_name.items():
        samples = {sample.name: sample.value for sample in next(iter(histogram.collect())).samples}
        if samples[f"hasten_{name}_count"]:
            found[name.removeprefix("request_")] = samples[f"hasten_{name}_sum"]
    return found


def test_the_time_of_a_request_is_told_by_phase() -> None:
    phases = Phases(CollectorRegistry())
    clock = RequestClock()
    clock.note(delta(1, queue_s=0.5), at_s=2.0)
    clock.note(delta(1, sample_idx=1, queue_s=0.75), at_s=2.5)
    clock.note(delta(4), at_s=4.0)
    phases.count(clock, GenerationParams(max_tokens=9, seed=0, n=2))
    phases.count(RequestClock(), GenerationParams(max_tokens=9, seed=0))  # it never got a token
    assert observed(phases) == {
        "queue_time_seconds": 0.5,
        "prefill_time_seconds": 1.5,
        "decode_time_seconds": 2.0,
        "inference_time_seconds": 3.5,
        "time_per_output_token_seconds": 0.5,
        "max_num_generation_tokens": 5,
        "params_max_tokens": 9,
        "params_n": 2,
    }


def test_a_beam_search_has_no_time_of_prefill_or_decoding() -> None:
    phases = Phases(CollectorRegistry())
    clock = RequestClock()
    clock.note(delta(7, queue_s=0.5), at_s=2.0)
    clock.note(delta(9, sample_idx=1), at_s=2.0)
    phases.count(clock, BEAM_PARAMS)
    assert observed(phases) == {
        "queue_time_seconds": 0.5,
        "inference_time_seconds": 1.5,
        "max_num_generation_tokens": 9,
        "params_max_tokens": 9,
        "params_n": 2,
    }


@pytest.mark.parametrize("params", [BEAM_PARAMS, GenerationParams(max_tokens=9, seed=0, n=2)])
def test_nobody_sees_the_first_token_of_a_beam_search(params: GenerationParams) -> None:
    async def deltas() -> AsyncGenerator[SampleDelta]:
        for idx in range(2):
            yield SampleDelta(idx, "", (), 3, 0, finish_reason="length")

    async def watch() -> int:
        request = AddRequest(request_id="a", prompt_token_ids=[1], params=params)
        return len([each async for each in metrics.watch(deltas(), Caller(), request)])

    metrics = Metrics()
    assert asyncio.run(watch()) == 2
    rendered = metrics.render(None).decode()
    num_seen = 2.0 if params.beam is None else 0.0
    assert f"hasten_time_to_first_token_seconds_count {num_seen}\n" in rendered
    assert (metrics.latencies()["ttft"]["p50"] is not None) == (params.beam is None)
    assert "hasten_request_seconds_count 1.0\n" in rendered
    assert 'hasten_samples_finished_total{finish_reason="length"} 2.0\n' in rendered


def test_recent_latencies_forget() -> None:
    recent = RecentLatency()
    assert recent.quantiles(0.0) == {"p50": None, "p95": None, "p99": None}
    for i in range(101):
        recent.note(at_s=float(i > 50), seconds=float(i))
    assert recent.quantiles(1.0) == {"p50": 50.0, "p95": 95.0, "p99": 99.0}
    assert recent.quantiles(60.5)["p50"] == 75.0
    assert recent.quantiles(100.0)["p50"] is None


def test_who_asks_is_known_inside_and_nobody_outside() -> None:
    assert caller().key.name == ""
    who = Caller(Key("alice"))
    with calling(who):
        assert caller() is who
    assert caller().key.name == ""


def test_metrics_have_the_names_that_dashboards_know(http: httpx.Client) -> None:
    http.post("/v1/completions", json={"prompt": "abc", "max_tokens": 4})
    metrics = http.get("/metrics").text
    label = '{engine="0",model_name="echo"}'
    for line in (
        f"vllm:num_requests_running{label} 0.0",
        f"vllm:num_requests_waiting{label} 0.0",
        f"vllm:kv_cache_usage_perc{label} 0.0",
        f"vllm:num_preemptions_total{label} 0.0",
        f"vllm:prompt_tokens_total{label} 0.0",
        f"vllm:generation_tokens_total{label} 0.0",
        f"vllm:spec_decode_num_drafts_total{label} 0.0",
    ):
        assert line in metrics, line
    ours, theirs = (
        next(line.split()[-1] for line in metrics.splitlines() if line.startswith(name))
        for name in (
            "hasten_time_to_first_token_seconds_sum",
            "vllm:time_to_first_token_seconds_sum",
        )
    )
    assert ours == theirs
    for name in ("queue_time_seconds", "prefill_time_seconds", "decode_time_seconds"):
        assert f"vllm:request_{name}_count{label}" in metrics
        assert f'vllm:request_{name}_bucket{{engine="0",le="0.1",model_name="echo"}}' in metrics
    assert 'vllm:request_success_total{engine="0",finished_reason="length"' in metrics
    assert 'num_gpu_blocks="100"' in metrics


def test_the_live_view_holds_no_text(http: httpx.Client) -> None:
    live = http.get("/v1/live").json()
    assert live["model"] == "echo"
    assert live["kv_blocks"] == ["0" * 100]
    assert set(live["latency_s"]) == {"ttft", "itl"}
    assert http.get("/v1/debug/requests").json() == {"object": "list", "data": []}


def test_the_dashboard_asks_for_metrics_that_there_are(http: httpx.Client) -> None:
    http.post("/v1/completions", json={"prompt": "abc", "max_tokens": 4})
    metrics = http.get("/metrics").text
    dashboard = (Path(__file__).parents[3] / "docs/grafana.json").read_text()
    wanted = set(re.findall(r"hasten_\w+", dashboard))
    assert len(wanted) > 15
    for name in wanted:
        assert f"# TYPE {name.removesuffix('_bucket')} " in metrics, name
