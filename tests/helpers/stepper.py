"""Runs a loaded model on sequences, step by step, without an engine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from hasten.core.loading import LoadedModel
from hasten.kernels.backend import Executable, KVPlan, get_backend
from hasten.kernels.dtypes import DType
from hasten.kernels.program import Capacity
from hasten.kernels.sampling_rows import greedy_rows
from hasten.kernels.step import (
    MAX_LOGPROBS,
    GroupTables,
    StepBatch,
    StepResult,
)

F32 = npt.NDArray[np.float32]
I32 = npt.NDArray[np.int32]

BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens to compute of one sequence: those at positions `start` and up."""

    sequence: int
    token_ids: Sequence[int]
    start: int


class Stepper:
    """Sequences in a KV cache of their own, greedy; each has a fixed row of blocks."""

    def __init__(
        self,
        model: LoadedModel,
        max_len: int = 128,
        num_sequences: int = 1,
        kernels: str = "reference",
        dtype: DType = DType.F32,
    ) -> None:
        program = model.build_program(dtype, dtype)
        backend = get_backend(kernels)
        num_blocks = num_sequences * -(-max_len // BLOCK_SIZE)
        groups = program.kv_groups
        plan = KVPlan(groups, (num_blocks + 1,) * len(groups), BLOCK_SIZE)
        capacity = Capacity(num_sequences * max_len, num_sequences, max_len, max_len)
        self._num_groups = len(groups)
        self._tables = np.arange(1, num_blocks + 1, dtype=np.int32).reshape(num_sequences, -1)
        self._executable: Executable = backend.compile(
            program, model.weights, backend.allocate_kv(plan), capacity
        )

    def logprobs(self, token_ids: Sequence[int], chunks: Iterable[int]) -> F32:
        """Log-probabilities after each token, in steps of `chunks` tokens: [len, vocab].

        For models whose whole vocabulary fits into the alternatives that a step may report.
        """
        rows: list[F32] = []
        start = 0
        for num_tokens in chunks:
            chunk = Chunk(0, token_ids[start : start + num_tokens], start)
            wanted = np.arange(num_tokens, dtype=np.int32)
            rows.append(_by_token_id(self.step([chunk], wanted, MAX_LOGPROBS)))
            start += num_tokens
        assert start == len(token_ids)
        return np.concatenate(rows)

    def greedy(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> list[list[int]]:
        """The prompts' continuations, all computed side by side."""
        chunks = [Chunk(idx, prompt, 0) for idx, prompt in enumerate(prompts)]
        outputs: list[list[int]] = [[] for _ in prompts]
        for _ in range(num_tokens):
            last_rows = np.cumsum([len(chunk.token_ids) for chunk in chunks], dtype=np.int32) - 1
            chosen = self.step(chunks, last_rows).token_ids
            for output, token_id in zip(outputs, chosen, strict=True):
                output.append(int(token_id))
            chunks = [
                Chunk(idx, output[-1:], len(prompts[idx]) + len(output) - 1)
                for idx, output in enumerate(outputs)
            ]
        return outputs

    def step(self, chunks: Sequence[Chunk], logit_rows: I32, num_logprobs: int = -1) -> StepResult:
        """Compute the chunks, laid end to end, in one step: what follows the rows asked for."""
        lengths = [len(chunk.token_ids) for chunk in chunks]
        ends = [chunk.start + len(chunk.token_ids) for chunk in chunks]
        positions = np.concatenate(
            [np.arange(chunk.start, end) for chunk, end in zip(chunks, ends, strict=True)]
        ).astype(np.int32)
        table_rows = np.array([chunk.sequence for chunk in chunks], np.int32)
        blocks = self._tables[np.repeat(table_rows, lengths), positions // BLOCK_SIZE]
        slots = (blocks * BLOCK_SIZE + positions % BLOCK_SIZE).astype(np.int32)
        tables = GroupTables(slots, self._tables, np.zeros((0, 2), np.int32))
        batch = StepBatch(
            token_ids=np.concatenate([chunk.token_ids for chunk in chunks]).astype(np.int32),
            positions=positions,
            query_starts=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32),
            seq_lens=np.array(ends, np.int32),
            table_rows=table_rows,
            groups=(tables,) * self._num_groups,
            logit_rows=logit_rows,
            sampling=greedy_rows(len(logit_rows), num_logprobs, positions[logit_rows] + 1),
        )
        return self._executable.run(batch)


def _by_token_id(result: StepResult) -> F32:
    order = np.argsort(result.top_ids, axis=1)
    assert (np.diff(np.take_along_axis(result.top_ids, order, axis=1), axis=1) == 1).all()
    return np.take_along_axis(result.top_logprobs, order, axis=1)
