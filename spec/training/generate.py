"""Training text from the model itself: an engine answers prompts, and its features are kept.

It can write prompts too: asked to continue where a user would speak, a model that was trained on
chats writes what a user might say (Xu et al., "Magpie", 2024).

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
from hasten.core.options import CacheOptions, ConfigurationError
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
"""Of answers: greedy, and sampled."""
PROMPT_TEMPERATURE = 1.0
MIN_PROMPT_TOKENS = 3
ATTEMPTS = 20
"""So many attempts at a prompt may fail on average: it never ends, or was written before."""


@dataclass(frozen=True, slots=True)
class Job:
    """One answer to be written."""

    name: str
    prompt: Sequence[int]
    temperature: float
    seed: int


def answer_jobs(prompts: Sequence[Sequence[int]], num_samples: int, seed: int) -> list[Job]:
    """Every prompt is answered greedily first, then sampled with other seeds."""
    return [
        Job(
            f"{sample}.{idx}",
            prompt,
            TEMPERATURES[min(sample, len(TEMPERATURES) - 1)],
            seed * 1_000_003 + sample * 65_537 + idx,
        )
        for sample in range(num_samples)
        for idx, prompt in enumerate(prompts)
    ]


def written_jobs(prompts: Sequence[Sequence[int]], seed: int) -> list[Job]:
    """Every written prompt is answered once, at one temperature after the other."""
    return [
        Job(f"written.{idx}", prompt, TEMPERATURES[idx % len(TEMPERATURES)], seed + idx)
        for idx, prompt in enumerate(prompts)
    ]


@dataclass(frozen=True, slots=True)
class UserTurn:
    """The tokens of a chat around what a user says."""

    opening: Sequence[int]
    closing: Sequence[int]


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

    def write_prompts(
        self,
        turn: UserTurn,
        count: int,
        max_tokens: int,
        seed: int,
        progress: Callable[[int], None],
    ) -> list[list[int]]:
        """`count` different prompts of at most `max_tokens`, as chats of one message.

        `progress` gets the number of those that there are. Raises ConfigurationError where the
        model hardly ever ends one.
        """
        written: dict[tuple[int, ...], None] = {}
        num_begun = 0
        while len(written) < count:
            while len(self._answers) < self._max_in_flight:
                if num_begun > ATTEMPTS * (count + self._max_in_flight):
                    raise ConfigurationError(
                        f"the model ended {len(written)} prompts of {num_begun} that it began: "
                        "it cannot write its own"
                    )
                job = Job(str(num_begun), turn.opening, PROMPT_TEMPERATURE, seed + num_begun)
                self._add(job, max_tokens, num_logprobs=None)
                num_begun += 1
            for output in self._engine.step():
                self._take(output)
                if output.finish_reason is not None:
                    tokens = self._answers.pop(output.request_id).tokens
                    if tokens[-1] in self._eos and len(tokens) > MIN_PROMPT_TOKENS:
                        written[tuple(tokens[:-1])] = None
                        progress(len(written))
        self._engine.abort(self._answers)
        self._answers.clear()
        return [[*turn.opening, *tokens, *turn.closing] for tokens in list(written)[:count]]

    def run(
        self,
        jobs: Sequence[Job],
        max_tokens: int,
        folder: Path,
        progress: Callable[[int, int], None],
    ) -> None:
        """Write the answers of at most `max_tokens` into `folder`.

        `progress` gets numbers of answers and of tokens as they come.
        """
        done = _read_done(folder)
        writer = ShardWriter(folder)
        finished: list[str] = []
        left = [job for job in jobs if job.name not in done]
        left.reverse()
        while left or self._engine.has_work:
            while left and len(self._answers) < self._max_in_flight:
                self._add(left.pop(), max_tokens)
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
        self, job: Job, max_tokens: int, num_logprobs: int | None = NUM_TEACHER_TOKENS
    ) -> None:
        params = GenerationParams(
            max_tokens=max_tokens,
            seed=job.seed,
            temperature=job.temperature,
            logprobs=num_logprobs,
            eos_token_ids=self._eos,
        )
        refused = self._engine.add_request(
            AddRequest(request_id=job.name, prompt_token_ids=list(job.prompt), params=params)
        )
        if refused is None:
            self._answers[job.name] = _Answer(list(job.prompt), [], [])

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


def _read_done(folder: Path) -> set[str]:
    path = folder / DONE_FILE
    return set(json.loads(path.read_text())) if path.is_file() else set()


def _write_done(folder: Path, done: set[str]) -> None:
    partial = folder / f"{DONE_FILE}.partial"
    partial.write_text(json.dumps(sorted(done)))
    partial.replace(folder / DONE_FILE)
