"""How long a step takes: one function that every load decision asks.

    step_time(shape) = body(num_tokens) + head(num_logit_rows)
                     + request_s * (num_requests - 1)
                     + kv_s * kv_tokens_read + pair_s * query_key_pairs
                     + drafter_pass_s * drafter_passes

`body` and `head` are measured points joined by lines, because kernels work in tiles and costs are
staircases, not slopes. All are profiled when the engine starts and refitted while it runs, from
medians and with hysteresis, for on a busy machine a single step says little.

Pure: it reads no clock; measured seconds are arguments. Exercised by
`pytest tests/unit/core/test_latency.py`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict, deque
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hasten.kernels.program import Capacity
    from hasten.kernels.step import StepBatch

REFIT_EVERY = 32
"""Observed steps between two refits."""
WINDOW = 15
"""Observations kept per size of step; the median of at least `MIN_SAMPLES` of them counts."""
MIN_SAMPLES = 5
HYSTERESIS = 0.02
"""A refit moves an estimate only when it is off by more than this share."""
SLOPE_SPREAD = 0.05
"""Contexts say something about attention when they change a step by more than this share."""
EXACT_UP_TO = 64
"""Steps of up to this many tokens are told apart exactly, larger ones to an eighth of an octave."""

LONG_CONTEXT = 1024
"""Tokens of context with which a start-up profile measures attention."""
PROFILED_SIZES = (64, 8, 2, 32, 256, 128, 3, 6, 12, 24, 48, 512, 1024, 2048)
"""Step sizes of a start-up profile, in order of use."""


class StepShape(msgspec.Struct, frozen=True, gc=False):
    """What a step costs by: counts, summed over its requests.

    `kv_tokens_read` are the tokens whose K and V attention reads; in `query_key_pairs` every
    computed token counts each token that it may attend to.
    """

    num_tokens: int
    num_logit_rows: int
    kv_tokens_read: int
    query_key_pairs: int
    num_requests: int
    drafter_passes: int = 0

    @classmethod
    def of(cls, batch: StepBatch) -> StepShape:
        return cls(
            num_tokens=batch.num_tokens,
            num_logit_rows=batch.num_logit_rows,
            kv_tokens_read=int(batch.seq_lens.sum()),
            query_key_pairs=int(batch.positions.sum()) + batch.num_tokens,
            num_requests=batch.num_requests,
        )

    def with_chunk(self, start: int, num_tokens: int, num_logit_rows: int = 0) -> StepShape:
        """This step and tokens [start, start + num_tokens) of one more request."""
        return StepShape(
            self.num_tokens + num_tokens,
            self.num_logit_rows + num_logit_rows,
            self.kv_tokens_read + start + num_tokens,
            self.query_key_pairs + num_tokens * start + num_tokens * (num_tokens + 1) // 2,
            self.num_requests + 1,
            self.drafter_passes,
        )


EMPTY_STEP = StepShape(0, 0, 0, 0, 0)


class Chunk(NamedTuple):
    """Tokens [start, start + num_tokens) of one request, the last rows wanting logits."""

    start: int
    num_tokens: int
    num_logit_rows: int = 0


class Curve:
    """Seconds as a function of a count: known points, joined by lines; 0 at 0."""

    def __init__(self) -> None:
        self._counts = [0]
        self._seconds = [0.0]

    def set(self, count: int, seconds: float) -> None:
        i = bisect_left(self._counts, count)
        if i < len(self._counts) and self._counts[i] == count:
            self._seconds[i] = seconds
        else:
            self._counts.insert(i, count)
            self._seconds.insert(i, seconds)

    def at(self, count: int) -> float:
        """Interpolated; beyond the last point the last segment is prolonged."""
        counts, seconds = self._counts, self._seconds
        i = bisect_left(counts, count)
        if i < len(counts) and counts[i] == count:
            return seconds[i]
        if len(counts) == 1:
            return 0.0
        i = min(i, len(counts) - 1)
        slope = (seconds[i] - seconds[i - 1]) / (counts[i] - counts[i - 1])
        return seconds[i - 1] + max(slope, 0.0) * (count - counts[i - 1])


class StepTimeModel:
    """The step-time function of one engine, fitted to what was measured.

    `drafter_pass_s` is 0 until whoever adds a drafter has measured one of its passes.
    """

    def __init__(self) -> None:
        self.body = Curve()
        self.head = Curve()
        self.request_s = 0.0
        self.kv_s = 0.0
        self.pair_s = 0.0
        self.drafter_pass_s = 0.0
        self._observed: dict[int, deque[tuple[StepShape, float]]] = defaultdict(
            lambda: deque(maxlen=WINDOW)
        )
        self._num_observed = 0

    def step_time(self, shape: StepShape) -> float:
        """Predicted seconds."""
        return self.body.at(shape.num_tokens) + self._beside_body(shape)

    def observe(self, shape: StepShape, seconds: float) -> None:
        """Learn from one step; every few steps the estimates move."""
        self._observed[_size_class(shape.num_tokens)].append((shape, seconds))
        self._num_observed += 1
        if self._num_observed % REFIT_EVERY == 0:
            self._refit_attention()
            self._refit_body()

    def _beside_body(self, shape: StepShape) -> float:
        return (
            self.head.at(shape.num_logit_rows)
            + self.request_s * (shape.num_requests - 1)
            + self.drafter_pass_s * shape.drafter_passes
            + self._attention(shape)
        )

    def _attention(self, shape: StepShape) -> float:
        return self.kv_s * shape.kv_tokens_read + self.pair_s * shape.query_key_pairs

    def _refit_attention(self) -> None:
        """Scale both attention costs by the slope of seconds over predicted seconds.

        Steps of one size differ in little but their contexts, so the slope is taken within sizes:
        the median over steps of (deviation in seconds) / (deviation in prediction). Source: the
        Theil-Sen estimator, against each size's medians instead of all pairs.
        """
        slopes = []
        for steps in self._observed.values():
            if len(steps) < MIN_SAMPLES:
                continue
            predicted = [self._attention(shape) for shape, _ in steps]
            middle, middle_s = median(predicted), median(seconds for _, seconds in steps)
            for x, (_, seconds) in zip(predicted, steps, strict=True):
                if abs(x - middle) > SLOPE_SPREAD * middle_s:
                    slopes.append((seconds - middle_s) / (x - middle))
        if len(slopes) >= MIN_SAMPLES:
            scale = median(slopes)
            if scale > 0 and abs(scale - 1) > HYSTERESIS:
                self.kv_s *= scale
                self.pair_s *= scale

    def _refit_body(self) -> None:
        for size, steps in self._observed.items():
            if len(steps) < MIN_SAMPLES:
                continue
            seconds = median(taken - self._beside_body(shape) for shape, taken in steps)
            total = median(taken for _, taken in steps)
            if abs(seconds - self.body.at(size)) > HYSTERESIS * total:
                self.body.set(size, max(seconds, 0.0))


def profile(
    measure: Callable[[Sequence[Chunk]], float], capacity: Capacity, budget_s: float
) -> StepTimeModel:
    """A first model from steps that `measure` runs, in about `budget_s` seconds of them.

    Sizes come in order of use: what does not fit the budget is extrapolated, and learnt while
    serving.
    """
    return _Profiler(measure, capacity, budget_s).run()


class _Profiler:
    """The measuring plan of `profile`."""

    def __init__(
        self, measure: Callable[[Sequence[Chunk]], float], capacity: Capacity, budget_s: float
    ) -> None:
        self._measure = measure
        self._capacity = capacity
        self._context = min(capacity.max_model_len // 2, LONG_CONTEXT)
        self._left_s = budget_s
        self._model = StepTimeModel()

    def run(self) -> StepTimeModel:
        # The very first step warms caches; it still is better than nothing when it takes all.
        self._model.body.set(1, self._time(Chunk(0, 1, 1)))
        self._measure_head()
        self._measure_attention()
        self._measure_requests()
        for count in PROFILED_SIZES:
            self._measure_body(count)
        return self._model

    def _time(self, *chunks: Chunk) -> float:
        """The median of three runs, or one where three would be dear."""
        runs = [self._measure(chunks)]
        if runs[0] < self._left_s / 20:
            runs += [self._measure(chunks), self._measure(chunks)]
        self._left_s -= sum(runs)
        return median(runs)

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

    def _measure_body(self, count: int) -> None:
        if self._can_measure(Chunk(0, count)):
            pairs = EMPTY_STEP.with_chunk(0, count).query_key_pairs
            self._model.body.set(count, self._time(Chunk(0, count)) - self._model.pair_s * pairs)


@dataclass(slots=True)
class ItlBudget:
    """Cuts prompts so that predicted steps stay under a target while requests decode.

    A prompt always gets at least `min_chunk` tokens, so that a target no step can meet slows
    prompts down and starves none.
    """

    model: StepTimeModel
    target_s: float
    min_chunk: int

    def max_chunk(self, step: StepShape, start: int, wanted: int) -> int:
        """How many of a prompt's next `wanted` tokens, from `start`, fit beside `step`."""
        if self._fits(step, start, wanted):
            return wanted
        low, high = min(self.min_chunk, wanted), wanted
        while low < high - 1:
            middle = (low + high) // 2
            if self._fits(step, start, middle):
                low = middle
            else:
                high = middle
        return low

    def _fits(self, step: StepShape, start: int, num_tokens: int) -> bool:
        return self.model.step_time(step.with_chunk(start, num_tokens, 1)) <= self.target_s


def _size_class(num_tokens: int) -> int:
    """Which steps count as equally large: a number of tokens that stands for all of them."""
    if num_tokens <= EXACT_UP_TO:
        return num_tokens
    grain = 1 << (num_tokens.bit_length() - 4)
    return (num_tokens + grain // 2) // grain * grain
