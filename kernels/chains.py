"""Drafting passes, one after another: each computes what the one before has chosen.

    pass 1   tokens of requests, as many as each is behind by     -> a guess after the last of each
    pass 2   those guesses, a row for each                        -> the guesses after them
    ...

A head's first pass reads of every token what its target knew of the token before, `known` by slot;
later ones read what the pass before left. A backend may run a chain as a whole (`RunsChains`);
`SinglePasses` runs the first pass on any backend, and whoever asks goes on from there.

Exercised by `pytest tests/cpu/spec/test_chains.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
from hasten.kernels.sampling_rows import greedy_rows
from hasten.kernels.step import GroupTables, StepBatch

if TYPE_CHECKING:
    from hasten.kernels.backend import Executable
    from hasten.kernels.step import BF16, F32, I32, SamplingRows


@dataclass(frozen=True, slots=True)
class HeadInputs:
    """What a head reads beside tokens.

    `known` [num_slots, width] is by slot of the chain's first group. `features` names the input for
    it; `hidden` is the tap on what a pass leaves, and the input for it, of `hidden_width`.
    """

    known: BF16
    features: str
    hidden: str
    hidden_width: int


@dataclass(frozen=True, slots=True)
class Chain:
    """How the passes of a program follow on each other.

    They write the KV groups `group_ids`; all others get the null slot. `translation` [vocab] makes
    tokens of what is chosen (None: it is one). The confidence in a greedy guess is its
    probability; that in a sampled one is `least_shared` at least, for where the noise is the
    target's, a guess that both find improbable is the same guess still.
    """

    group_ids: range
    least_shared: float
    translation: I32 | None = None
    head: HeadInputs | None = None


@dataclass(slots=True)
class DraftStep:
    """The first pass of a chain, laid out flat as `StepBatch` is."""

    token_ids: I32  # [T]
    query_starts: I32  # [R + 1], ascending: each request has tokens
    starts: I32  # [R] the position of each request's first token
    table_rows: I32  # [R]
    guessing: I32  # [L] requests that want a guess, ascending
    tables: tuple[I32, ...]  # by KV group: its block tables
    sampling: SamplingRows | None  # [L], None: all greedy; its positions are set by who runs it
    hidden: F32 | None = None  # [T, hidden]: what the tokens' head left, instead of what is known


@runtime_checkable
class RunsChains(Protocol):
    """An executable bound to a chain."""

    def bind_chain(self, chain: Chain) -> None:
        """To be called once, before `run_chain`."""
        ...

    def run_chain(
        self, step: DraftStep, num_passes: int, least_survival: float, survivals: F32
    ) -> tuple[I32, F32]:
        """Tokens [P, L] and confidences [P, L] of P passes: as many as asked for, or fewer.

        `survivals` [L] are the probabilities that all guesses of a request so far are right; they
        are multiplied as passes go, and the chain ends when one falls below the least. The arrays
        are valid until the next call; taps are the last pass's. Raises as `Executable.run` does.
        """
        ...


class SinglePasses:
    """`RunsChains` over an executable that runs steps: chains of one pass."""

    def __init__(self, executable: Executable, block_size: int) -> None:
        self._executable = executable
        self._block_size = block_size
        self._chain: Chain | None = None

    def bind_chain(self, chain: Chain) -> None:
        self._chain = chain

    def run_chain(
        self,
        step: DraftStep,
        num_passes: int,  # noqa: ARG002  (one at a time)
        least_survival: float,  # noqa: ARG002
        survivals: F32,
    ) -> tuple[I32, F32]:
        assert self._chain is not None, "no chain was bound"
        chain, lens = self._chain, np.diff(step.query_starts)
        rows = np.repeat(step.table_rows, lens)
        positions = np.repeat(step.starts - step.query_starts[:-1], lens)
        positions += np.arange(len(step.token_ids), dtype=np.int32)
        logit_rows = step.query_starts[1:][step.guessing] - 1
        batch = StepBatch(
            token_ids=step.token_ids,
            positions=positions,
            query_starts=step.query_starts,
            seq_lens=step.starts + lens,
            table_rows=step.table_rows,
            groups=tuple(
                self._group(group_id, table, rows, positions)
                for group_id, table in enumerate(step.tables)
            ),
            logit_rows=logit_rows,
            sampling=greedy_rows(len(logit_rows), 0) if step.sampling is None else step.sampling,
        )
        batch.sampling.positions = positions[logit_rows] + 1
        if chain.head is not None:
            self._set_inputs(chain.head, step, rows, positions)
        result = self._executable.run(batch)
        confidences = np.exp(result.logprobs)
        is_sampled = batch.sampling.temperature > 0
        shared = chain.least_shared
        confidences[is_sampled] = shared + (1 - shared) * confidences[is_sampled]
        survivals *= confidences
        token_ids = result.token_ids
        if chain.translation is not None:
            token_ids = chain.translation[token_ids]
        return token_ids[None], confidences[None]

    def _group(self, group_id: int, table: I32, rows: I32, positions: I32) -> GroupTables:
        assert self._chain is not None
        is_own = group_id in self._chain.group_ids
        slots = self._slots(table, rows, positions) if is_own else np.zeros_like(positions)
        return GroupTables(slots, table, np.zeros((0, 2), np.int32))

    def _slots(self, table: I32, rows: I32, positions: I32) -> I32:
        size = self._block_size
        slots: I32 = table[rows, positions // size] * size + positions % size
        return slots

    def _set_inputs(self, head: HeadInputs, step: DraftStep, rows: I32, positions: I32) -> None:
        """Either the features of the tokens before, zero where there are none, or hidden rows."""
        assert self._chain is not None
        width = head.known.shape[1]
        if step.hidden is not None:
            features, hidden = np.zeros((len(rows), width), np.float32), step.hidden
        else:
            table = step.tables[self._chain.group_ids.start]
            before = self._slots(table, rows, np.maximum(positions - 1, 0))
            features = head.known[before].astype(np.float32)
            features[positions == 0] = 0.0
            hidden = np.zeros((len(rows), head.hidden_width), np.float32)
        self._executable.set_input(head.features, features)
        self._executable.set_input(head.hidden, hidden)
