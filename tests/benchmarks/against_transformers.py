"""Decoding speed of this engine against `transformers.generate`, interleaved in one run.

    python -m tests.benchmarks.against_transformers

Same embedded model, same random prompts of 128 tokens, 64 tokens each, both cores. Decode speed is
(tokens - 1 per stream) over (time of the run - time of a 1-token run); figures are medians of
several repetitions in turn, so that a busy machine slows all of them alike. No test depends on it.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from statistics import median
from time import perf_counter

import numpy as np
import torch
from hasten.core.build import build_engine
from hasten.core.engine import Engine
from hasten.core.loading import load_model
from hasten.core.messages import AddRequest
from hasten.core.options import CacheOptions, EngineOptions, ExecutionOptions
from hasten.core.params import GenerationParams
from rich.console import Console
from rich.table import Table

from tests.helpers.embedded_oracle import transformers_model

PROMPT_LEN, NUM_TOKENS = 128, 64

Run = Callable[[list[list[int]], int], None]
"""Generates that many tokens for each of some prompts."""


def transformers_run() -> Run:
    model = transformers_model(load_model("embedded")).to(torch.bfloat16)

    def run(prompts: list[list[int]], num_tokens: int) -> None:
        ids = torch.tensor(prompts)
        with torch.inference_mode(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                min_new_tokens=num_tokens,
                max_new_tokens=num_tokens,
            )

    return run


def engine_run(kernels: str) -> Run:
    cache = CacheOptions(enable_prefix_caching=False, kv_cache_memory_bytes=1 << 29)
    options = EngineOptions(cache=cache, execution=ExecutionOptions(kernels=kernels))
    engine = build_engine(options, report=lambda _: None)

    def run(prompts: list[list[int]], num_tokens: int) -> None:
        params = GenerationParams(max_tokens=num_tokens, seed=0, temperature=0.0, ignore_eos=True)
        for i, prompt in enumerate(prompts):
            request = AddRequest(request_id=str(i), prompt_token_ids=prompt, params=params)
            assert engine.add_request(request) is None
        _finish(engine)

    return run


def _finish(engine: Engine) -> None:
    while engine.has_work:
        engine.step()


def decode_speed(run: Run, num_streams: int, seed: int) -> float:
    """Tokens per second of all streams together, without the prompts' time."""
    rng = np.random.default_rng(seed)
    prompts = rng.integers(100, 40_000, (num_streams, PROMPT_LEN)).tolist()
    seconds = []
    for num_tokens in (1, NUM_TOKENS):
        begin_s = perf_counter()
        run(prompts, num_tokens)
        seconds.append(perf_counter() - begin_s)
    return num_streams * (NUM_TOKENS - 1) / (seconds[1] - seconds[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    repeats: int = parser.parse_args().repeats
    contenders = [
        ("transformers.generate, bf16", transformers_run(), 1),
        ("reference", engine_run("reference"), 1),
        ("reference", engine_run("reference"), 16),
        ("cpu", engine_run("cpu"), 1),
        ("cpu", engine_run("cpu"), 16),
    ]
    speeds: list[list[float]] = [[] for _ in contenders]
    for repeat in range(repeats + 1):
        for speed, (_, run, num_streams) in zip(speeds, contenders, strict=True):
            speed.append(decode_speed(run, num_streams, repeat))
    medians = [median(speed[1:]) for speed in speeds]  # the first round warms up
    table = Table("engine", "streams", "tokens/s", "against transformers")
    for (name, _, num_streams), typical in zip(contenders, medians, strict=True):
        table.add_row(name, str(num_streams), f"{typical:.1f}", f"{typical / medians[0]:.2f} x")
    Console().print(table)


if __name__ == "__main__":
    main()
