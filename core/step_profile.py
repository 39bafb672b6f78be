"""The start-up profile: the few steps that a first step-time model is made from.

Not here: the model itself and what it learns while serving (`core.latency`). It reads no clock:
`measure` runs a step and says how long it took. Exercised by
`pytest tests/unit/core/test_latency.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hasten.core.latency import EMPTY_STEP, Chunk, StepTimeModel

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hasten.kernels.program import Capacity

LONG_CONTEXT = 1024
"""Tokens of context with which a start-up profile measures attention."""
SMALL_SIZES = (1, 8, 9, 2, 4, 16, 17, 3, 6, 12)
LARGE_SIZES = (64, 32, 33, 256, 24, 128, 48, 512, 1024, 2048)
"""Step sizes of a start-up profile, in order of use.

Kernels work in tiles of 8 or 16 rows: one row more than fills them is a stair of its own, and
whether a draft is worth it at 8 or 16 streams depends on just that.
"""
NUM_RUNS = 3
"""Of which the fastest counts, where that is not dear."""
LARGEST_DECODE = 64
"""Steps of up to so many tokens are timed with a logit row for each, as decoding has them."""


def profile(
    measure: Callable[[Sequence[Chunk]], float],
    capacity: Capacity,
    budget_s: float,
    num_warm_up_runs: int = 0,
) -> StepTimeModel:
    """A first model from steps that `measure` runs, in about `budget_s` seconds of them.

    Sizes come in order of use: what does not fit the budget is extrapolated, and learnt while
    serving. Before a step is timed it runs `num_warm_up_runs` times, which do not count.
    """
    return _Profiler(measure, capacity, budget_s, num_warm_up_runs).run()


class _Profiler:
    """The measuring plan of `profile`."""

    def __init__(
        self,
        measure: Callable[[Sequence[Chunk]], float],
        capacity: Capacity,
        budget_s: float,
        num_warm_up_runs: int,
    ) -> None:
        self._measure = measure
        self._capacity = capacity
        self._context = min(capacity.max_model_len // 2, LONG_CONTEXT)
        self._left_s = budget_s
        self._num_warm_up_runs = num_warm_up_runs
        self._model = StepTimeModel()

    def run(self) -> StepTimeModel:
        # The very first step touches every weight and buffer: it is not what steps will cost.
        self._measure((Chunk(0, 1, 1),))
        self._model.body.set(1, self._time(Chunk(0, 1, 1)))
        self._measure_head()
        self._measure_attention()
        self._measure_requests()
        self._measure_small_sizes()
        for count in LARGE_SIZES:
            self._measure_body(count)
        return self._model

    def _time(self, *chunks: Chunk) -> float:
        """The fastest of three runs, or one where three would be dear.

        What others do on the machine makes runs longer, and is learnt for all sizes at once while
        serving (`StepTimeModel`); here it would distort one size against another.
        """
        self._warm_up(chunks)
        runs = [self._measure(chunks)]
        if self._is_cheap(runs[0]):
            runs += [self._measure(chunks) for _ in range(NUM_RUNS - 1)]
        self._left_s -= sum(runs)
        return min(runs)

    def _warm_up(self, chunks: Sequence[Chunk]) -> None:
        for _ in range(self._num_warm_up_runs):
            self._measure(chunks)

    def _is_cheap(self, seconds: float) -> bool:
        """Whether a step can be run more than once."""
        return seconds < self._left_s / 20

    def _can_measure(self, chunk: Chunk) -> bool:
        fits = chunk.start + chunk.num_tokens <= self._capacity.max_model_len
        fits = fits and chunk.num_tokens <= self._capacity.max_tokens
        return fits and self._model.step_time(EMPTY_STEP.with_chunk(*chunk)) <= self._left_s

    def _measure_head(self) -> None:
        """The same tokens with and without logits."""
        for count in (1, 4, 16):
            if not self._can_measure(Chunk(0, count, count)):
                return
            without = self._time(Chunk(0, count))
            with_rows = self._time(Chunk(0, count, count))
            self._model.body.set(count, without)
            self._model.head.set(count, max(with_rows - without, 0.0))

    def _measure_attention(self) -> None:
        """What a context costs one query, and several, tells keys and pairs apart."""
        several = min(16, self._capacity.max_tokens)
        one_key_s = self._context_s(1)
        if several > 1 and self._can_measure(Chunk(self._context, several)):
            extra = self._context_s(several) - one_key_s
            self._model.pair_s = max(extra / (several - 1), 0.0)
        # Never quite zero, so that a refit can scale it.
        self._model.kv_s = max(one_key_s - self._model.pair_s, 1e-12)

    def _context_s(self, num_tokens: int) -> float:
        """Seconds that each token of context adds to a chunk."""
        if not self._can_measure(Chunk(self._context, num_tokens)):
            return 0.0
        near = self._time(Chunk(0, num_tokens))
        far = self._time(Chunk(self._context, num_tokens))
        return max(far - near, 0.0) / max(self._context, 1)

    def _measure_requests(self) -> None:
        """What it costs that tokens belong to several requests."""
        count = min(8, self._capacity.max_requests, self._capacity.max_tokens)
        if count > 1 and self._can_measure(Chunk(0, count)):
            together = self._time(Chunk(0, count))
            apart = self._time(*(Chunk(0, 1) for _ in range(count)))
            self._model.request_s = max((apart - together) / (count - 1), 0.0)

    def _measure_small_sizes(self) -> None:
        """In turns, so that a busy moment falls on all of them alike.

        Whether a row more is worth it is decided by how they compare, and a machine that others
        use too may be twice as slow for longer than the runs of one size take.
        """
        fastest: dict[int, float] = {}
        sizes = list(SMALL_SIZES)
        for turn in range(NUM_RUNS):
            for count in list(sizes):
                chunk = Chunk(0, count, count)
                if not self._can_measure(chunk):
                    sizes.remove(count)
                    continue
                if turn == 0:
                    self._warm_up((chunk,))
                seconds = self._measure((chunk,))
                self._left_s -= seconds
                fastest[count] = min(seconds, fastest.get(count, seconds))
                self._set_body(chunk, fastest[count])
                if not self._is_cheap(seconds):
                    sizes.remove(count)

    def _measure_body(self, count: int) -> None:
        chunk = Chunk(0, count, count if count <= LARGEST_DECODE else 0)
        if self._can_measure(chunk):
            self._set_body(chunk, self._time(chunk))

    def _set_body(self, chunk: Chunk, seconds: float) -> None:
        """Take in a step of this chunk alone."""
        shape = EMPTY_STEP.with_chunk(*chunk)
        beside = self._model.pair_s * shape.query_key_pairs
        beside += self._model.head.at(shape.num_logit_rows)
        self._model.body.set(chunk.num_tokens, max(seconds - beside, 0.0))
