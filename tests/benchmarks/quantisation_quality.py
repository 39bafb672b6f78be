"""What quantising costs: KL, top-1 agreement and perplexity against bf16 of the same weights.

    python -m tests.benchmarks.quantisation_quality --tokens 65536 [--checkpoint NAME=DIRECTORY]
    python -m tests.benchmarks.quantisation_quality --tokens 65536 --simulated [--checkpoint ...]

The weights are those of the embedded model, dequantised to bf16. The text is the start of
wikitext-2's test set in HASTEN_DATA, in windows of 2,048 tokens. `--simulated` measures the same
schemes in an independent simulation (`quantisation_simulated`): transformers' model with rounded
weights, inputs, keys and values. Its figures are what the served ones should be;
docs/quantisation.md holds both.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from hasten.api.text.tokenizer import load_tokenizer
from hasten.core.binding import ModelBinding
from hasten.core.loading import load_model
from hasten.core.loading.hf_export import export_model
from hasten.core.options import CacheOptions, EngineOptions, ExecutionOptions, ModelOptions
from hasten.core.prompt_batch import PromptChunk, PromptLayout
from hasten.evals.distribution import FullDistribution, divergence
from hasten.evals.logits import TAP, with_taps
from hasten.kernels.backend import get_backend
from hasten.kernels.program import Capacity
from rich.console import Console
from rich.progress import track

BASELINE, FP8_KV = "bf16", "fp8 KV"
WINDOW_LEN = 2048
ROWS = 256
"""Positions compared at once: 50 MB of logits of each model."""
BLOCK_SIZE = 16
DATA = Path(os.environ.get("HASTEN_DATA", Path(__file__).parents[3] / "shared"))
TEXT = DATA / "data" / "perplexity" / "wikitext2_raw_test.txt"

Reader = Callable[[tuple[int, ...]], Iterator[FullDistribution]]
"""What a model expects at every position of a window from the second on, `ROWS` at a time."""


@dataclass(slots=True)
class Totals:
    """Sums over all rows of one configuration, beside its baseline."""

    kl: list[npt.NDArray[np.float64]] = field(default_factory=list)
    same_top: list[npt.NDArray[np.bool_]] = field(default_factory=list)
    surprise: list[npt.NDArray[np.float64]] = field(default_factory=list)

    def add(self, base: FullDistribution, found: FullDistribution) -> None:
        self.kl.append(divergence(base, found))
        self.same_top.append(base.top_ids == found.top_ids)
        self.surprise.append(base.token_logprobs - found.token_logprobs)

    @property
    def mean_kl(self) -> float:
        return float(np.concatenate(self.kl).mean())

    def line(self, name: str) -> str:
        kl, same = np.concatenate(self.kl), np.concatenate(self.same_top)
        ratio = np.exp(np.concatenate(self.surprise).mean())
        error = kl.std() / np.sqrt(len(kl))
        return f"| {name} | {kl.mean():.4f} +- {error:.4f} | {same.mean():.3f} | {ratio:.4f} |"


Maker = Callable[[], Reader]
"""Makes a reader when it is wanted: each holds a model."""


def served(options: EngineOptions) -> Maker:
    """The served model, by its own kernels."""

    def make() -> Reader:
        wanted = options.model
        model = load_model(
            wanted.model,
            quantization=wanted.quantization,
            quantize_lm_head=wanted.quantize_lm_head,
        )
        execution = options.execution
        backend = get_backend(execution.kernels, execution.num_threads, execution.cpu_activations)
        return served_reader(ModelBinding.resolve(model, backend, options))

    return make


def served_reader(binding: ModelBinding) -> Reader:
    """Reads the logits of every row, computed by the program that serves."""
    program = with_taps(binding.program)
    layout = PromptLayout(program.kv_groups, 1, WINDOW_LEN, BLOCK_SIZE)
    step = binding.backend.compile(
        program,
        binding.model.weights,
        binding.backend.allocate_kv(layout.kv_plan()),
        Capacity(ROWS, 1, 1, WINDOW_LEN),
    )

    def read(ids: tuple[int, ...]) -> Iterator[FullDistribution]:
        for start in range(0, len(ids) - 1, ROWS):
            chunk = np.array(ids[start : min(start + ROWS, len(ids) - 1)], np.int32)
            step.run(layout.batch([PromptChunk(chunk, start)]))
            wanted = ids[start + 1 : start + 1 + len(chunk)]
            yield FullDistribution.from_logits(step.tap(TAP).copy(), wanted)

    return read


def served_makers(
    folder: Path, checkpoints: dict[str, str], execution: ExecutionOptions, dtype: str
) -> dict[str, Maker]:
    """The baseline in `folder`, then every scheme."""
    plain = EngineOptions(model=ModelOptions(model=str(folder), dtype=dtype), execution=execution)

    def with_model(**changes: Any) -> Maker:
        return served(replace(plain, model=replace(plain.model, **changes)))

    return {
        BASELINE: served(plain),
        **{scheme: with_model(quantization=scheme) for scheme in ("fp8", "int8", "int4")},
        "int4, head too": with_model(quantization="int4", quantize_lm_head=True),
        FP8_KV: served(replace(plain, cache=CacheOptions(kv_cache_dtype="fp8"))),
        **{name: with_model(model=made) for name, made in checkpoints.items()},
    }


def measure(makers: dict[str, Maker], num_tokens: int, only: list[str]) -> dict[str, Totals]:
    """Print a table of the schemes in `only`, or all, beside the baseline."""
    ids = load_tokenizer("embedded").encode(TEXT.read_text(encoding="utf-8"))[:num_tokens]
    windows = [tuple(ids[at : at + WINDOW_LEN]) for at in range(0, len(ids), WINDOW_LEN)]
    wanted = only or [name for name in makers if name != BASELINE]
    baseline, readers = makers[BASELINE](), {name: makers[name]() for name in wanted}
    totals = {name: Totals() for name in wanted}
    console = Console()
    for window in track(windows, "windows", console=console):
        found = {name: reader(window) for name, reader in readers.items()}
        for base in baseline(window):
            for name, rows in found.items():
                totals[name].add(base, next(rows))
        so_far = ", ".join(f"{name} {total.mean_kl:.4f}" for name, total in totals.items())
        console.print(f"KL so far: {so_far}", style="dim")
    console.print("| scheme | KL (nats) | top-1 agreement | perplexity ratio |\n|---|---|---|---|")
    for name, total in totals.items():
        console.print(total.line(name))
    return totals


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--tokens", type=int, default=65_536)
    parser.add_argument("--only", action="append", default=[], metavar="SCHEME")
    parser.add_argument("--checkpoint", action="append", default=[], metavar="NAME=DIRECTORY")
    parser.add_argument("--kernels", default="cpu")
    parser.add_argument("--num-threads", type=int)
    parser.add_argument("--dtype", default="bfloat16", help="of activations, baseline included")
    parser.add_argument("--simulated", action="store_true")
    asked = parser.parse_args()
    checkpoints = dict(entry.split("=", 1) for entry in asked.checkpoint)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        export_model(load_model("embedded"), folder)
        if asked.simulated:
            from tests.benchmarks.quantisation_simulated import simulated_makers

            makers = simulated_makers(folder, checkpoints, asked.kernels)
        else:
            execution = ExecutionOptions(asked.kernels, asked.num_threads)
            makers = served_makers(folder, checkpoints, execution, asked.dtype)
        measure(makers, asked.tokens, asked.only)


if __name__ == "__main__":
    main()
