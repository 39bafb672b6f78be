"""`hasten bench latency` and `throughput` without their command line: an engine in this process.

Prompts are pseudo-random tokens and no output ends early, so two runs do the same work.
Exercised by `pytest tests/cpu/api/test_engine_bench.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from time import perf_counter, perf_counter_ns
from typing import TYPE_CHECKING, cast

import msgspec
import numpy as np
from hasten.api.engine_process import DEFAULT_FACTORY, load_factory
from hasten.api.step_limits import LimitShares
from hasten.core.latency import Chunk
from hasten.core.messages import AddRequest, OutputBatch
from hasten.core.options import ConfigurationError, option
from hasten.core.params import GenerationParams
from hasten.core.runner import dummy_batch
from hasten.kernels import ops
from hasten.kernels.backend import KVPlan
from hasten.kernels.cpu.limits import MachineLimits
from hasten.kernels.dtypes import DType
from hasten.kernels.program import Capacity, Program, Rows, WeightName
from hasten.kernels.weights import DenseWeight

if TYPE_CHECKING:
    from collections.abc import Callable

    from hasten.api.step_limits import StepLimits
    from hasten.core.engine import Engine
    from hasten.core.messages import TokenOutput
    from hasten.core.options import EngineOptions
    from hasten.kernels.backend import Backend

NUM_WARMUP_STEPS = 8
NUM_SAMPLING_RUNS = 20
MODEL, SAMPLE, MESSAGE = "model", "sample", "message"
ENGINE_PARTS = ("schedule", "prepare", MODEL, "output", "update", "propose")
"""What the engine times, in the order of a step: `model` is all that the backend does, `output`
is verification and reports."""


def _check_at_least_one(options: object, *names: str) -> None:
    for name in names:
        if getattr(options, name) < 1:
            raise ConfigurationError(f"--{name.replace('_', '-')} must be at least 1")


@dataclass(frozen=True, slots=True)
class LatencyOptions:
    """What is measured."""

    batch_sizes: str = option("1,4,16", "how many requests decode together, with commas")
    input_len: int = option(128, "tokens of each prompt")
    num_steps: int = option(64, "decoding steps to measure at each size")
    num_prompts: int = option(5, "prompts to read one by one, for the time to a first token")
    temperature: float = option(1.0, "sampling temperature")

    def __post_init__(self) -> None:
        _check_at_least_one(self, "input_len", "num_steps", "num_prompts")
        if any(size < 1 for size in self.sizes):
            raise ConfigurationError("--batch-sizes must be at least 1")

    @property
    def sizes(self) -> list[int]:
        try:
            return [int(size) for size in self.batch_sizes.split(",")]
        except ValueError as error:
            raise ConfigurationError("--batch-sizes must be numbers with commas") from error


@dataclass(frozen=True, slots=True)
class ThroughputOptions:
    """What is measured."""

    num_requests: int = option(64, "requests, all there from the start")
    input_len: int = option(128, "tokens of each prompt")
    output_len: int = option(64, "tokens to generate for each")
    temperature: float = option(1.0, "sampling temperature")

    def __post_init__(self) -> None:
        _check_at_least_one(self, "num_requests", "input_len", "output_len")


class LatencyRow(msgspec.Struct, frozen=True):
    """Decoding steps at one batch size: medians, in microseconds.

    `parts_us` are those of `ENGINE_PARTS`, `model` without sampling, then `sample` and `message`:
    what a step has to say made into bytes.
    """

    batch_size: int
    prefill_ms: float
    step_us: float
    parts_us: dict[str, float]
    tokens_per_s: float
    limits: LimitShares | None

    @property
    def outside_model(self) -> float:
        """The share of a step that is neither the model's nor sampling's."""
        return 1.0 - (self.parts_us[MODEL] + self.parts_us[SAMPLE]) / self.step_us


class PromptFigures(msgspec.Struct, frozen=True):
    """A prompt that is read while nothing else runs, from its arrival to its first token."""

    input_len: int
    first_token_ms: float
    tokens_per_s: float
    limits: LimitShares | None


class Latency(msgspec.Struct, frozen=True):
    """What `hasten bench latency` measures. Without `machine`, no limits are known."""

    machine: MachineLimits | None
    prompt: PromptFigures
    rows: list[LatencyRow]
    schema: str = "hasten.bench.latency/1"


class Throughput(msgspec.Struct, frozen=True):
    """A whole run; `parts_s` are sums over its steps."""

    num_requests: int
    num_prompt_tokens: int
    num_output_tokens: int
    num_steps: int
    num_preemptions: int
    seconds: float
    parts_s: dict[str, float]


class BenchEngine:
    """The engine that `hasten serve` would start, with steps timed part by part.

    Raises ConfigurationError or LoadError as `core.build` does.
    """

    def __init__(self, options: EngineOptions) -> None:
        self.engine = cast("Engine", load_factory(DEFAULT_FACTORY)(options))
        self.info = self.engine.ready_message()
        self._encoder = msgspec.msgpack.Encoder()
        self._rng = np.random.default_rng(0)
        self._num_requests = 0

    def add(self, input_len: int, max_tokens: int, temperature: float) -> None:
        """Raises ConfigurationError when it can never fit."""
        self._num_requests += 1
        params = GenerationParams(
            max_tokens=max_tokens,
            seed=self._num_requests,
            temperature=temperature,
            ignore_eos=True,
        )
        refused = self.engine.add_request(
            AddRequest(
                request_id=str(self._num_requests),
                prompt_token_ids=self._rng.integers(0, self.info.vocab_size, input_len).tolist(),
                params=params,
            )
        )
        if refused is not None:
            raise ConfigurationError(refused.message)

    def step(self) -> tuple[list[TokenOutput], dict[str, int]]:
        """One step's outputs, and the nanoseconds of each of its parts."""
        timings = self.engine.timings
        timings.reset()
        outputs = self.engine.step()
        spent = {part: getattr(timings, f"{part}_ns") for part in ENGINE_PARTS}
        begin_ns = perf_counter_ns()
        self._encoder.encode(OutputBatch(outputs))
        return outputs, spent | {MESSAGE: perf_counter_ns() - begin_ns}


def measure_latency(
    bench: BenchEngine, options: LatencyOptions, backend: Backend, limits: StepLimits | None
) -> Latency:
    """Prompts alone, then one row for each batch size. Raises ConfigurationError."""
    prompt = _prompt_figures(bench, options, limits)
    rows = []
    for batch_size in options.sizes:
        sample_us = sampling_us(backend, bench.info.vocab_size, batch_size, options.temperature)
        rows.append(_latency_row(bench, options, batch_size, sample_us, limits))
        bench.engine.abort_all()
    return Latency(None if limits is None else limits.machine, prompt, rows)


def _prompt_figures(
    bench: BenchEngine, options: LatencyOptions, limits: StepLimits | None
) -> PromptFigures:
    # The first one meets memory that was never touched.
    times_s = [_first_token_s(bench, options) for _ in range(options.num_prompts + 1)][1:]
    seconds = median(times_s)
    chunk = Chunk(0, options.input_len, 1)
    return PromptFigures(
        input_len=options.input_len,
        first_token_ms=seconds * 1000,
        tokens_per_s=options.input_len / seconds,
        limits=None if limits is None else limits.shares([chunk], seconds),
    )


def _first_token_s(bench: BenchEngine, options: LatencyOptions) -> float:
    begin_s = perf_counter()
    bench.add(options.input_len, 1, options.temperature)
    while bench.engine.has_work:
        bench.step()
    return perf_counter() - begin_s


def _latency_row(
    bench: BenchEngine,
    options: LatencyOptions,
    batch_size: int,
    sample_us: float,
    limits: StepLimits | None,
) -> LatencyRow:
    begin_s = perf_counter()
    for _ in range(batch_size):
        room = bench.info.max_model_len - options.input_len
        bench.add(options.input_len, max(room, 1), options.temperature)
    begun: set[str] = set()
    while len(begun) < batch_size:
        begun |= {output.request_id for output in bench.step()[0]}
    prefill_s = perf_counter() - begin_s
    steps = _decode(bench, options.num_steps)
    parts = {part: median(spent[part] for _, spent in steps) / 1000 for part in steps[0][1]}
    step_us = median(sum(spent.values()) for _, spent in steps) / 1000
    num_tokens = sum(count for count, _ in steps)
    model_us = max(parts[MODEL] - sample_us, 0.0)
    # Halfway, each request holds its prompt and what came until then.
    chunk = Chunk(options.input_len + NUM_WARMUP_STEPS + options.num_steps // 2, 1, 1)
    chunks = [chunk] * batch_size
    return LatencyRow(
        batch_size=batch_size,
        prefill_ms=prefill_s * 1000,
        step_us=step_us,
        parts_us=parts | {MODEL: model_us, SAMPLE: parts[MODEL] - model_us},
        tokens_per_s=num_tokens / len(steps) / step_us * 1e6,
        limits=None if limits is None else limits.shares(chunks, step_us / 1e6),
    )


def _decode(bench: BenchEngine, num_steps: int) -> list[tuple[int, dict[str, int]]]:
    """Tokens and times of steps in which all requests decode."""
    steps = []
    for i in range(NUM_WARMUP_STEPS + num_steps):
        outputs, spent = bench.step()
        if any(output.finish_reason is not None for output in outputs):
            raise ConfigurationError(
                f"after {i} steps the context of {bench.info.max_model_len} tokens is full: "
                "measure fewer --num-steps, or a shorter --input-len"
            )
        steps.append((sum(len(output.token_ids) for output in outputs), spent))
    return steps[NUM_WARMUP_STEPS:]


def sampling_us(backend: Backend, vocab_size: int, batch_size: int, temperature: float) -> float:
    """Microseconds of the op `sample` alone, over rows of random logits.

    The backends replay a step in one call, so sampling cannot be timed within it. This counts a
    copy of the logits too, which is small beside it.
    """
    program = Program(vocab_size, kv_groups=())
    table = WeightName("logits")
    rows = program.buffer("rows", Rows.TOKENS, vocab_size, DType.F32)
    logits = program.buffer("logits", Rows.LOGITS, vocab_size, DType.F32)
    for op in (ops.Embed(table, rows), ops.GatherRows(rows, logits), ops.Sample(logits)):
        program.add(op)
    noise = np.random.default_rng(0).standard_normal((1, vocab_size), np.float32)
    plan = KVPlan((), (), 16)
    capacity = Capacity(batch_size, batch_size, batch_size, max_model_len=1)
    cache = backend.allocate_kv(plan)
    executable = backend.compile(program, {table: DenseWeight(noise)}, cache, capacity)
    batch = dummy_batch([Chunk(0, 1, 1)] * batch_size, plan, max_model_len=1)
    batch.sampling.temperature.fill(temperature)
    return median(_timed(lambda: executable.run(batch)) for _ in range(NUM_SAMPLING_RUNS)) * 1e6


def _timed(work: Callable[[], object]) -> float:
    begin_s = perf_counter()
    work()
    return perf_counter() - begin_s


def measure_throughput(
    bench: BenchEngine, options: ThroughputOptions, progress: Callable[[int], None]
) -> Throughput:
    """Run all requests to their end; `progress` is told of requests that finished.

    Raises ConfigurationError when a request can never fit.
    """
    for _ in range(options.num_requests):
        bench.add(options.input_len, options.output_len, options.temperature)
    totals: dict[str, int] = {}
    num_tokens = num_steps = 0
    begin_s = perf_counter()
    while bench.engine.has_work:
        outputs, spent = bench.step()
        num_steps += 1
        num_tokens += sum(len(output.token_ids) for output in outputs)
        for part, spent_ns in spent.items():
            totals[part] = totals.get(part, 0) + spent_ns
        progress(sum(output.finish_reason is not None for output in outputs))
    return Throughput(
        num_requests=options.num_requests,
        num_prompt_tokens=options.num_requests * options.input_len,
        num_output_tokens=num_tokens,
        num_steps=num_steps,
        num_preemptions=bench.engine.stats().num_preemptions,
        seconds=perf_counter() - begin_s,
        parts_s={part: spent_ns * 1e-9 for part, spent_ns in totals.items()},
    )
