"""Training text from the model itself: an engine answers prompts, and its features are kept.

The engine runs many requests at once. Every step's tapped rows are kept by table row and position,
so when a request ends, the features of its whole text are there; its alternatives come with the
tokens. Finished prompts are remembered with each shard, so that a run can be resumed.
Exercised by `pytest tests/cpu/spec/test_training.py`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from hasten.core.assembly import assemble, make_executor
from hasten.core.binding import ModelBinding
from hasten.core.demand import settle_memory, step_capacity
from hasten.core.engine import Engine
from hasten.core.latency import StepTimeModel
from hasten.core.messages import AddRequest
from hasten.core.models.decoder import feature_tap
from hasten.core.options import CacheOptions
from hasten.core.params import GenerationParams
from hasten.spec.training.corpus import NUM_TEACHER_TOKENS, Passage, ShardWriter
from ml_dtypes import bfloat16

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from hasten.core.blocks import BlockManager
    from hasten.core.messages import PositionLogprobs, TokenOutput
    from hasten.core.options import EngineOptions
    from hasten.kernels.backend import Executable
    from hasten.kernels.step import StepBatch

DONE_FILE = "done.json"
TEMPERATURES = (0.0, 0.8)
"""Every prompt is answered greedily first, then at the other temperatures with other seeds."""


@dataclass(frozen=True, slots=True)
class GenerationOptions:
    """How much text: `num_samples` answers to each prompt, of at most `max_tokens`."""

    num_samples: int = 2
    max_tokens: int = 256
    seed: int = 0


class RowCollector:
    """Keeps what each step taps, by table row and position: [rows, max_len, width] bf16."""

    def __init__(self, layers: Sequence[int], hidden: int, num_rows: int, max_len: int) -> None:
        self._taps = [feature_tap(layer) for layer in layers]
        self._hidden = hidden
        self._rows = np.zeros((num_rows, max_len, len(layers) * hidden), bfloat16)

    def take(self, batch: StepBatch, executable: Executable) -> None:
        rows = np.repeat(batch.table_rows, np.diff(batch.query_starts))
        for i, tap in enumerate(self._taps):
            columns = slice(i * self._hidden, (i + 1) * self._hidden)
            self._rows[rows, batch.positions, columns] = executable.tap(tap)

    def of(self, row: int, num_tokens: int) -> np.ndarray[tuple[int, int], np.dtype[np.generic]]:
        kept: np.ndarray[tuple[int, int], np.dtype[np.generic]] = self._rows[
            row, :num_tokens
        ].copy()
        return kept


@dataclass(slots=True)
class _Answer:
    prompt: list[int]
    tokens: list[int]
    logprobs: list[PositionLogprobs]


class TextGenerator:
    """An engine that writes a corpus."""

    def __init__(self, options: EngineOptions, feature_layers: Sequence[int]) -> None:
        """Raises what building an engine raises."""
        cache = CacheOptions(
            kv_cache_memory_bytes=options.cache.kv_cache_memory_bytes,
            enable_prefix_caching=False,
        )
        options = replace(options, cache=cache)
        binding = ModelBinding.load(options)
        program = binding.model.build_program(
            binding.activation_dtype, binding.kv_format, feature_layers
        )
        binding = replace(binding, program=program)
        plan = settle_memory(binding, options)
        executor = make_executor(binding, plan, step_capacity(options, plan.max_model_len))
        self._collector = RowCollector(
            feature_layers,
            binding.model.config.hidden_size,
            options.scheduler.max_num_seqs,
            plan.max_model_len,
        )
        executor.keep_features(self._collector)
        parts = assemble(binding, executor, plan, options, StepTimeModel())
        self._engine = Engine(parts)
        self._blocks: BlockManager = parts.blocks
        self._running = parts.scheduler.running
        self._max_in_flight = 2 * options.scheduler.max_num_seqs
        self._eos = binding.model.eos_token_ids
        self._answers: dict[str, _Answer] = {}

    def run(
        self,
        prompts: Sequence[Sequence[int]],
        options: GenerationOptions,
        folder: Path,
        progress: Callable[[int, int], None],
    ) -> None:
        """Answer all `prompts` into `folder`; `progress` gets answers and tokens as they come."""
        done = _read_done(folder)
        writer = ShardWriter(folder)
        finished: list[str] = []
        left = [
            (f"{sample}.{idx}", prompt, sample)
            for sample in range(options.num_samples)
            for idx, prompt in enumerate(prompts)
            if f"{sample}.{idx}" not in done
        ]
        left.reverse()
        while left or self._engine.has_work:
            while left and len(self._answers) < self._max_in_flight:
                self._add(*left.pop(), options)
            rows = {
                request.group_id: self._blocks.table_row(request.request_id)
                for request in self._running
            }
            for output in self._engine.step():
                self._take(output)
                if output.finish_reason is None:
                    continue
                answer = self._answers.pop(output.request_id)
                if output.request_id in rows and len(answer.tokens) > 1:
                    passage = self._passage(answer, rows[output.request_id])
                    progress(1, len(passage.tokens))
                    finished.append(output.request_id)
                    if writer.add(passage):
                        done.update(finished)
                        finished.clear()
                        _write_done(folder, done)
        writer.flush()
        _write_done(folder, done.union(finished))

    def _add(
        self, request_id: str, prompt: Sequence[int], sample: int, options: GenerationOptions
    ) -> None:
        params = GenerationParams(
            max_tokens=options.max_tokens,
            seed=_seed(options, request_id),
            temperature=TEMPERATURES[min(sample, len(TEMPERATURES) - 1)],
            logprobs=NUM_TEACHER_TOKENS,
            eos_token_ids=self._eos,
        )
        refused = self._engine.add_request(
            AddRequest(request_id=request_id, prompt_token_ids=list(prompt), params=params)
        )
        if refused is None:
            self._answers[request_id] = _Answer(list(prompt), [], [])

    def _take(self, output: TokenOutput) -> None:
        answer = self._answers[output.request_id]
        answer.tokens += output.token_ids
        answer.logprobs += output.logprobs or []

    def _passage(self, answer: _Answer, row: int) -> Passage:
        """The last token was never computed, so it has no features: they stay zero."""
        tokens = np.array([*answer.prompt, *answer.tokens], np.int32)
        features = self._collector.of(row, len(tokens))
        features[-1] = 0
        shape = len(tokens), NUM_TEACHER_TOKENS
        top_ids, top_probs = np.full(shape, -1, np.int32), np.zeros(shape, np.float16)
        for i, entry in enumerate(answer.logprobs, start=len(answer.prompt)):
            count = min(len(entry.top_token_ids), NUM_TEACHER_TOKENS)
            top_ids[i, :count] = entry.top_token_ids[:count]
            top_probs[i, :count] = np.exp(entry.top_logprobs[:count])
        return Passage(tokens, len(answer.prompt), features, top_ids, top_probs)


def _seed(options: GenerationOptions, request_id: str) -> int:
    """Of a request: the same in every run."""
    sample, _, idx = request_id.partition(".")
    return options.seed * 1_000_003 + int(sample) * 65_537 + int(idx)


def _read_done(folder: Path) -> set[str]:
    path = folder / DONE_FILE
    return set(json.loads(path.read_text())) if path.is_file() else set()


def _write_done(folder: Path, done: set[str]) -> None:
    partial = folder / f"{DONE_FILE}.partial"
    partial.write_text(json.dumps(sorted(done)))
    partial.replace(folder / DONE_FILE)
