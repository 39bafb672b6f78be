"""What a step costs outside the model: microseconds per part, by number of decoding requests.

    python -m tests.benchmarks.engine_overhead

The executor answers at once, so everything measured is the engine's own; no test depends on it.
"""

from __future__ import annotations

from dataclasses import fields
from statistics import quantiles

import numpy as np
from hasten.core.counters import StepTimings
from hasten.core.engine import Engine
from hasten.core.params import GenerationParams
from hasten.kernels.step import StepBatch, StepResult

from tests.helpers.engines import EngineSize, ask, make_parts

NUM_WINDOWS = 20
STEPS_PER_WINDOW = 50
SIZE = EngineSize(
    num_blocks=20_000,
    block_size=16,
    max_model_len=4096,
    max_num_seqs=64,
    max_num_batched_tokens=2048,
)


class InstantExecutor:
    """Chooses token 1 everywhere."""

    def __init__(self) -> None:
        self._ones = np.ones(SIZE.max_num_batched_tokens, np.int32)
        self._no_logprobs = np.full(SIZE.max_num_batched_tokens, np.nan, np.float32)
        self._no_tops = np.zeros((SIZE.max_num_batched_tokens, 0), np.int32)

    def execute(self, batch: StepBatch) -> StepResult:
        num_rows = batch.num_logit_rows
        return StepResult(
            token_ids=self._ones[:num_rows],
            logprobs=self._no_logprobs[:num_rows],
            top_ids=self._no_tops[:num_rows],
            top_logprobs=self._no_tops[:num_rows].astype(np.float32),
        )


def decoding_engine(num_requests: int, params: GenerationParams) -> Engine:
    engine = Engine(make_parts(SIZE, InstantExecutor()))
    for i in range(num_requests):
        engine.add_request(ask(f"r{i}", [i % 64] * 500, params))
    while engine.stats().num_waiting or engine.stats().num_generated_tokens < 4 * num_requests:
        engine.step()
    return engine


def measure(engine: Engine) -> dict[str, float]:
    """Microseconds per step of each part: the lowest decile, for others use the machine too."""
    windows: dict[str, list[float]] = {}
    parts = [part.name for part in fields(StepTimings) if part.name.endswith("_ns")]
    for _ in range(NUM_WINDOWS):
        engine.timings.reset()
        for _ in range(STEPS_PER_WINDOW):
            engine.step()
        for part in parts:
            spent = getattr(engine.timings, part) / STEPS_PER_WINDOW / 1000
            windows.setdefault(part.removesuffix("_ns"), []).append(spent)
    return {part: quantiles(values, n=10)[0] for part, values in windows.items()}


def main() -> None:
    plain = GenerationParams(max_tokens=3000, seed=1, ignore_eos=True)
    penalised = GenerationParams(max_tokens=3000, seed=1, ignore_eos=True, presence_penalty=0.5)
    for name, params in (("plain", plain), ("penalised", penalised)):
        for num_requests in (1, 8, 64):
            parts = measure(decoding_engine(num_requests, params))
            shown = "  ".join(f"{part} {us:6.1f}" for part, us in parts.items())
            print(f"{name:9} {num_requests:3} requests, us: {shown}")  # noqa: T201  the output


if __name__ == "__main__":
    main()
