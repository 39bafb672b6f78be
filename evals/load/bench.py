"""`hasten bench serve` without its command line: options in, figures out.

Exercised by `pytest tests/unit/load` and, against a real server, by `pytest tests/server`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from hasten.core.options import ConfigurationError, option
from hasten.evals.load.arrivals import Ramp, ramped, rescaled
from hasten.evals.load.client import LoadClient, RequestRecord, Target, first_model
from hasten.evals.load.errors import LoadError
from hasten.evals.load.run import LoadRun, closed_loop, open_loop
from hasten.evals.load.summary import LoadSummary, Targets, summarise
from hasten.evals.load.workload import (
    Workload,
    prompts_from_file,
    random_workload,
    trace_from_file,
)


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """What is asked, and how fast."""

    num_requests: int = option(100, "conversations to start")
    concurrency: int = option(1, "clients of the closed loop (unless a rate is given)")
    request_rate: float | None = option(None, "requests per second, whatever the answers (open)")
    end_rate: float | None = option(None, "ramp the rate linearly to this one")
    burstiness: float = option(1.0, "variance of the gaps: 0 a metronome, 1 Poisson, more: bursts")
    trace_speed: float | None = option(None, "replay a trace's own arrival times, so much faster")
    prompts: str | None = option(None, "jsonl file with messages, turns, prompt or question")
    trace: str | None = option(None, "Azure, Mooncake or arrival_s/input/output trace")
    input_len: int = option(128, "words of made-up prompts; the longest taken from a trace")
    output_len: int = option(64, "tokens to ask for; the longest taken from a trace")
    temperature: float = option(0.0, "sampling temperature")
    warmup: int = option(1, "requests before the measured ones")
    load_seed: int = option(0, "seed of made-up prompts and arrival times; part of --prompts")
    timeout_s: float = option(600.0, "longest time for one request")
    ttft_target_ms: float | None = option(None, "goodput: first token within this")
    tpot_target_ms: float | None = option(None, "goodput: time per output token within this")
    e2e_target_ms: float | None = option(None, "goodput: whole answer within this")

    def __post_init__(self) -> None:
        for name in ("num_requests", "concurrency", "input_len", "output_len"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"--{name.replace('_', '-')} must be at least 1")
        if self.prompts is not None and self.trace is not None:
            raise ConfigurationError("give --prompts or --trace, not both")
        if self.trace_speed is not None and self.trace is None:
            raise ConfigurationError("--trace-speed needs --trace")
        if self.trace_speed is not None and self.request_rate is not None:
            raise ConfigurationError("give --trace-speed or --request-rate, not both")
        if self.end_rate is not None and self.request_rate is None:
            raise ConfigurationError("--end-rate needs --request-rate")

    @property
    def targets(self) -> Targets:
        return Targets(self.ttft_target_ms, self.tpot_target_ms, self.e2e_target_ms)

    def workload(self) -> Workload:
        """What to ask. Raises LoadError."""
        if self.prompts is not None:
            path = Path(self.prompts)
            return prompts_from_file(path, self.num_requests, self.output_len, self.load_seed)
        if self.trace is not None:
            return trace_from_file(
                Path(self.trace),
                self.num_requests,
                self.load_seed,
                self.input_len,
                self.output_len,
            )
        return random_workload(self.num_requests, self.input_len, self.output_len, self.load_seed)

    def arrivals(self, workload: Workload) -> list[float] | None:
        """Arrival times; None for the closed loop. Raises LoadError."""
        if self.trace_speed is not None:
            times = [c.arrival_s for c in workload.conversations if c.arrival_s is not None]
            return rescaled(times, self.trace_speed)
        if self.request_rate is None:
            return None
        ramp = Ramp(self.request_rate, self.end_rate or self.request_rate)
        return ramped(ramp, len(workload.conversations), self.load_seed, self.burstiness)


Progress = Callable[[int, int], None]
"""Called with how many of how many requests are done."""


async def bench_serve(
    base_url: str, api_key: str | None, options: LoadOptions, progress: Progress
) -> LoadSummary:
    """Run the load against the server at `base_url` (with /v1) and sum it up.

    Raises LoadError when the server does not answer, every request failed, or this client could
    not keep up.
    """
    workload = options.workload()
    try:
        target = Target(base_url, await first_model(base_url, api_key), api_key)
    except (aiohttp.ClientError, OSError, LookupError, TimeoutError) as error:
        raise LoadError(f"{base_url} does not answer: {error}") from error
    sampling = {"temperature": options.temperature, "ignore_eos": workload.ignore_eos}
    if not workload.ignore_eos:
        del sampling["ignore_eos"]  # not every server knows it
    async with LoadClient(target, options.timeout_s, sampling) as client:
        run = await _run(client, workload, options, progress)
    run.check_punctual()
    summary = summarise(run, options.targets)
    if summary.num_ok == 0:
        raise LoadError(f"no request was answered: {'; '.join(summary.errors)}")
    return summary


async def _run(
    client: LoadClient, workload: Workload, options: LoadOptions, progress: Progress
) -> LoadRun:
    warmup = random_workload(max(options.warmup, 1), 8, 2, options.load_seed + 1)
    if options.warmup:
        await closed_loop(client, warmup, 1, lambda _: None)
    done = 0

    def count(_: RequestRecord) -> None:
        nonlocal done
        done += 1
        progress(done, workload.num_requests)

    arrivals = options.arrivals(workload)
    if arrivals is None:
        return await closed_loop(client, workload, options.concurrency, count)
    return await open_loop(client, workload, arrivals, count)


def run_bench_serve(
    base_url: str, api_key: str | None, options: LoadOptions, progress: Progress
) -> LoadSummary:
    """`bench_serve` in an event loop of its own."""
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(bench_serve(base_url, api_key, options, progress))
