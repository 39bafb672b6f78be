"""The load generator against a scripted server on loopback, and its arithmetic by hand."""

from __future__ import annotations

import asyncio
import json
import statistics
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path

import pytest
from aiohttp import web
from hasten.evals.load.arrivals import Ramp, poisson, ramped, rescaled
from hasten.evals.load.client import (
    LoadClient,
    RequestRecord,
    Target,
    first_model,
    token_gaps,
    tokens_per_chunk,
)
from hasten.evals.load.errors import LoadError
from hasten.evals.load.run import MAX_STALL_S, LoadRun, closed_loop, open_loop
from hasten.evals.load.summary import Targets, summarise
from hasten.evals.load.workload import (
    Workload,
    prompts_from_file,
    random_text,
    random_workload,
    trace_from_file,
)


def record(times: list[float], sizes: list[int], num_tokens: int) -> RequestRecord:
    return RequestRecord(
        scheduled_s=0.0,
        sent_s=0.0,
        chunk_times=times,
        chunk_sizes=sizes,
        num_output_tokens=num_tokens,
        end_s=times[-1],
    )


def test_poisson_has_its_rate_and_a_metronome_no_variance() -> None:
    times = poisson(rate=50.0, count=5_000, seed=3)
    assert times[-1] == pytest.approx(100.0, rel=0.06)
    assert times == poisson(rate=50.0, count=5_000, seed=3)
    gaps = [b - a for a, b in pairwise(poisson(4.0, 20, seed=1, burstiness=0))]
    assert gaps == pytest.approx([0.25] * 19)


@pytest.mark.parametrize("burstiness", [0.5, 1.0, 4.0])
def test_burstiness_is_the_variance_of_gaps(burstiness: float) -> None:
    times = poisson(rate=10.0, count=40_000, seed=5, burstiness=burstiness)
    gaps = [b - a for a, b in pairwise(times)]
    assert statistics.variance(gaps) == pytest.approx(burstiness / 100, rel=0.1)


def test_ramp_ends_faster_than_it_starts() -> None:
    times = ramped(Ramp(1.0, 10.0), 100, seed=0, burstiness=0)
    assert times[1] - times[0] > 5 * (times[-1] - times[-2])
    assert rescaled([5.0, 7.0, 9.0], 2.0) == [0.0, 1.0, 2.0]
    with pytest.raises(ValueError, match="rates must be positive"):
        Ramp(0.0, 1.0)


def test_gaps_are_per_token_and_add_up_to_the_decode_time() -> None:
    one_each = record([1.0, 1.5, 2.5], [3, 3, 3], 3)
    assert token_gaps(one_each) == [0.5, 1.0]
    several = record([1.0, 2.0, 3.0], [4, 12, 4], 5)
    assert tokens_per_chunk(several) == [1, 2, 2]
    assert sum(token_gaps(several)) == pytest.approx(several.decode_s)
    assert several.tpot_s == pytest.approx(0.5)
    assert record([1.0], [3], 1).tpot_s is None


def test_goodput_counts_requests_that_met_every_target() -> None:
    fast, slow = record([0.1, 0.2], [1, 1], 2), record([2.0, 2.1], [1, 1], 2)
    run = LoadRun(random_workload(2, 4, 2, 0), [fast, slow], 10.0, [0.0])
    assert summarise(run, Targets(ttft_ms=500)).goodput_per_s == pytest.approx(0.1)
    assert summarise(run, Targets(ttft_ms=500, tpot_ms=50)).goodput_per_s == 0
    assert summarise(run, Targets()).goodput_per_s == pytest.approx(0.2)


def test_a_client_that_stalls_is_refused() -> None:
    run = LoadRun(random_workload(1, 4, 2, 0), [], 1.0, [2 * MAX_STALL_S] * 10)
    with pytest.raises(LoadError, match="could not keep up"):
        run.check_punctual()


def test_workloads_read_what_they_say(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "a"}\n\n{"turns": ["b", "c"], "max_tokens": 7}\n')
    workload = prompts_from_file(rows, 3, 5)
    assert [len(c.turns) for c in workload.conversations] == [1, 2, 1]
    assert [t.max_tokens for t in workload.conversations[1].turns] == [7, 7]
    assert workload.num_requests == 4
    assert [len(c.turns) for c in prompts_from_file(rows, 3, 5, seed=1).conversations] == [2, 1, 2]

    mooncake = tmp_path / "trace.jsonl"
    lines = [
        {"timestamp": 1000, "input_length": 1024, "output_length": 3, "hash_ids": [0, 1]},
        {"timestamp": 3000, "input_length": 600, "output_length": 3, "hash_ids": [0, 2]},
    ]
    mooncake.write_text("\n".join(map(json.dumps, lines)))
    first, second = trace_from_file(mooncake, 9, 0, 4096, 64).conversations
    shared = random_text(512, (0, 0))
    assert first.turns[0].content.startswith(shared)
    assert second.turns[0].content.startswith(shared)
    assert (first.arrival_s, second.arrival_s) == (1.0, 3.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"prompt": "a"}\n{"prompt": 3}', "rows.jsonl:2: needs messages"),
        ("nonsense", "rows.jsonl:1: not JSON"),
        ("[1]", "rows.jsonl:1: a row must be an object"),
        ('{"prompt": "a", "max_tokens": 0}', "rows.jsonl:1: max_tokens"),
        ("", "no rows"),
    ],
)
def test_bad_rows_are_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(text)
    with pytest.raises(LoadError, match=message):
        prompts_from_file(path, 1, 5)


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[str]:
    async def models(_: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "scripted"}]})

    app = web.Application()
    app.router.add_get("/v1/models", models)
    app.router.add_post("/v1/chat/completions", handler)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    try:
        yield f"http://{host}:{port}/v1"
    finally:
        await runner.cleanup()


async def three_tokens(request: web.Request) -> web.StreamResponse:
    body = await request.json()
    assert body["stream_options"] == {"include_usage": True}
    response = web.StreamResponse()
    await response.prepare(request)
    chunks: list[dict[str, object]] = [
        {"choices": [{"delta": {"role": "assistant", "content": ""}}]},
        {"choices": [{"delta": {"content": "Hé"}}]},
        {"choices": [{"delta": {"content": "llo "}}]},
        {"choices": [{"delta": {"content": "you"}}]},
        {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 3}},
    ]
    for chunk in chunks:
        await response.write(f"data: {json.dumps(chunk)}\n\n".encode())
        await asyncio.sleep(0.01)
    await response.write(b"data: [DONE]\n\n")
    return response


async def refusing(_: web.Request) -> web.StreamResponse:
    return web.json_response({"error": {"message": "too long"}}, status=400)


def run_load(handler: Handler, workload: Workload, arrivals: list[float] | None) -> LoadRun:
    async def go() -> LoadRun:
        async with serving(handler) as url:
            target = Target(url, await first_model(url, None))
            async with LoadClient(target, timeout_s=10, sampling={"temperature": 0}) as client:
                if arrivals is None:
                    return await closed_loop(client, workload, 2, lambda _: None)
                return await open_loop(client, workload, arrivals, lambda _: None)

    return asyncio.run(go())


@pytest.mark.parametrize("arrivals", [None, [0.0, 0.01, 0.02]])
def test_a_run_measures_every_request(arrivals: list[float] | None) -> None:
    run = run_load(three_tokens, random_workload(3, 8, 3, 0), arrivals)
    assert [r.text for r in run.records] == ["Héllo you"] * 3
    summary = summarise(run, Targets())
    assert (summary.num_ok, summary.num_failed, summary.num_output_tokens) == (3, 0, 9)
    assert summary.itl_ms.p50 >= 9
    assert all(r.scheduled_s <= r.sent_s <= r.chunk_times[0] <= r.end_s for r in run.records)


def test_later_turns_carry_the_earlier_answers(tmp_path: Path) -> None:
    seen: list[list[str]] = []

    async def remember(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        seen.append([m["content"] for m in body["messages"]])
        return await three_tokens(request)

    path = tmp_path / "chat.jsonl"
    path.write_text('{"turns": ["one", "two"]}')
    run_load(remember, prompts_from_file(path, 1, 3), None)
    assert seen == [["one"], ["one", "Héllo you", "two"]]


def test_failures_are_counted_with_their_reason() -> None:
    run = run_load(refusing, random_workload(2, 8, 3, 0), None)
    summary = summarise(run, Targets())
    assert (summary.num_ok, summary.num_failed) == (0, 2)
    assert "HTTP 400" in summary.errors[0]
    assert "too long" in summary.errors[0]
