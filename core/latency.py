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

import math
from collections import defaultdict, deque
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from hasten.core.curve import Curve

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hasten.kernels.step import I32, StepBatch

REFIT_EVERY = 32
"""Observed steps between two refits."""
WINDOW = 15
"""Observations kept per size of step; the median of at least `MIN_SAMPLES` of them counts."""
MIN_SAMPLES = 5
HYSTERESIS = 0.02
"""A refit moves an estimate only when it is off by more than this share."""
NUM_ERRORS = 2.0
"""And by more than so many standard errors."""
MAX_ATTENTION_SCALE = 1.2
"""Attention's cost at most changes by this factor at a time: a machine that becomes faster or
slower while contexts grow looks like attention, too."""
SLOPE_SPREAD = 0.05
"""Contexts say something about attention when they change a step by more than this share."""
EXACT_UP_TO = 64
"""Steps of up to this many tokens are told apart exactly, larger ones to an eighth of an octave."""


NUM_OVERRUNS = 16
"""Steps with prompts whose real times count for the next ones."""
MIN_PROMPT_TOKENS = 16
"""A step that computes so many tokens without logits has prompts."""
STALE_AFTER = 64
"""Steps without prompts, after which nothing is known of how fast they are now."""
UNKNOWN_OVERRUN = 2.3
"""What is feared then: between two prompts a shared machine may become so much slower."""
OVERRUN_MARGIN = 1.1
"""How much longer than the worst of them the next one is expected to be at most."""

FEW_VALUES = 32
MAX_ROW_TIMES = 256
"""Shapes whose `row_times` are remembered."""


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
        num_tokens, num_requests = batch.num_tokens, batch.num_requests
        num_pairs = _total(batch.positions) + num_tokens
        only_decodes = num_tokens == num_requests
        return cls(
            num_tokens=num_tokens,
            num_logit_rows=batch.num_logit_rows,
            kv_tokens_read=num_pairs if only_decodes else _total(batch.seq_lens),
            query_key_pairs=num_pairs,
            num_requests=num_requests,
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


def _total(values: I32) -> int:
    """The sum. Of few, Python takes a tenth of numpy's time, which a step drives out of caches."""
    if len(values) <= FEW_VALUES:
        return sum(values.tolist())
    return int(values.sum())


class Chunk(NamedTuple):
    """Tokens [start, start + num_tokens) of one request, the last rows wanting logits."""

    start: int
    num_tokens: int
    num_logit_rows: int = 0


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
        self._recent: list[tuple[StepShape, float, float]] = []
        self._load = 1.0
        self._paced: set[bool] = set()
        self._overruns: deque[float] = deque(maxlen=NUM_OVERRUNS)
        self._since_prompt = 0
        self._row_times: dict[tuple[int, int], list[float]] = {}

    def step_time(self, shape: StepShape) -> float:
        """Predicted seconds."""
        return self.body.at(shape.num_tokens) + self._beside_body(shape)

    @property
    def longest_overrun(self) -> float:
        """How many times longer than predicted the latest steps with prompts were, at worst.

        But for one, which may be chance. They are few and of many sizes, so estimates follow them
        slowly.
        """
        if self._since_prompt > STALE_AFTER or len(self._overruns) < 2:
            return UNKNOWN_OVERRUN
        return sorted(self._overruns)[-2]

    def row_times(self, shape: StepShape, num_more: int) -> Sequence[float]:
        """Seconds of body and head of `shape` with 0, 1, .. `num_more` more rows, logits included.

        Valid until the next refit; do not modify.
        """
        key = shape.num_tokens, shape.num_logit_rows
        times = self._row_times.get(key)
        if times is None:
            if len(self._row_times) >= MAX_ROW_TIMES:
                self._row_times.clear()
            times = self._row_times[key] = []
        for more in range(len(times), num_more + 1):
            times.append(self.body.at(key[0] + more) + self.head.at(key[1] + more))
        return times

    def observe(self, shape: StepShape, seconds: float, busy_s: float | None = None) -> None:
        """Learn from one step; every few steps the estimates move.

        Of its seconds, `busy_s` were its own work (None: all), the others went to whoever else uses
        the machine. Own work tells sizes apart; what others take slows all of them down alike.
        Were the two not told apart, sizes that occur would follow the load and others not, and
        larger steps, which is what drafts make, would seem cheap.
        """
        self._note_overrun(shape, seconds)
        self._recent.append((shape, seconds, busy_s or seconds))
        if len(self._recent) < REFIT_EVERY:
            return
        self._refit_load()
        self._refit_pace()
        for known, _, busy in self._recent:
            self._observed[_size_class(known.num_tokens)].append((known, busy * self._load))
        self._recent.clear()
        self._refit_attention()
        self._refit_body()
        self._row_times.clear()

    def _note_overrun(self, shape: StepShape, seconds: float) -> None:
        self._since_prompt += 1
        if shape.num_tokens - shape.num_logit_rows < MIN_PROMPT_TOKENS:
            return
        if self._since_prompt > STALE_AFTER:
            self._overruns.clear()
        self._since_prompt = 0
        self._overruns.append(seconds / max(self.step_time(shape), 1e-9))

    def _beside_body(self, shape: StepShape) -> float:
        return (
            self.head.at(shape.num_logit_rows)
            + self.request_s * (shape.num_requests - 1)
            + self.drafter_pass_s * shape.drafter_passes
            + self._attention(shape)
        )

    def _attention(self, shape: StepShape) -> float:
        return self.kv_s * shape.kv_tokens_read + self.pair_s * shape.query_key_pairs

    def _refit_load(self) -> None:
        """Scale everything by how much more of the machine others take than before."""
        load = median(seconds / busy_s for _, seconds, busy_s in self._recent)
        for is_large in (False, True):
            self._scale(load / self._load, is_large)
        self._load = load

    def _refit_pace(self) -> None:
        """Scale small and large steps by how much slower work of known sizes is.

        Caches that others use too, and a profile's warm ones, tell on all sizes that memory bounds
        alike, and on all that arithmetic bounds, but not equally on both: were there one pace, each
        burst of prompts would spoil what is known of decoding, and the other way round. Those that
        were never seen follow the others.
        """
        paces: dict[bool, list[float]] = {False: [], True: []}
        for shape, _, busy_s in self._recent:
            is_large = shape.num_tokens > EXACT_UP_TO
            predicted = self.step_time(shape)
            if predicted > 0 and (is_large or shape.num_tokens in self.body):
                paces[is_large].append(busy_s * self._load / predicted)
        for is_large, found in paces.items():
            if len(found) < MIN_SAMPLES:
                continue
            self._paced.add(is_large)
            pace = median(found)
            if abs(pace - 1) > HYSTERESIS:
                self._scale(pace, is_large)
                if (not is_large) not in self._paced:
                    self._scale(pace, not is_large)

    def _scale(self, factor: float, is_large: bool) -> None:
        if is_large:
            self.body.scale(factor, above=EXACT_UP_TO)
            self.pair_s *= factor
        else:
            self.body.scale(factor, up_to=EXACT_UP_TO)
            self.head.scale(factor)
            self.request_s *= factor
            self.kv_s *= factor
        for size, steps in self._observed.items():
            if (size > EXACT_UP_TO) is is_large:
                scaled = [(shape, seconds * factor) for shape, seconds in steps]
                steps.clear()
                steps.extend(scaled)

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
            scale = min(max(median(slopes), 1 / MAX_ATTENTION_SCALE), MAX_ATTENTION_SCALE)
            if abs(scale - 1) > HYSTERESIS:
                self.kv_s *= scale
                self.pair_s *= scale

    def _refit_body(self) -> None:
        for size, steps in self._observed.items():
            if len(steps) < MIN_SAMPLES:
                continue
            found = [taken - self._beside_body(shape) for shape, taken in steps]
            seconds, total = median(found), median(taken for _, taken in steps)
            least = max(HYSTERESIS * total, NUM_ERRORS * _error_of_median(found, seconds))
            if abs(seconds - self.body.at(size)) > least:
                self.body.set(size, max(seconds, 0.0))


@dataclass(slots=True)
class ItlBudget:
    """Cuts prompts so that predicted steps stay under a target, and real ones under `longest_s`.

    A prompt always gets at least `min_chunk` tokens, so that a target no step can meet slows
    prompts down and starves none.
    """

    model: StepTimeModel
    target_s: float
    min_chunk: int
    longest_s: float = math.inf

    def max_chunk(self, step: StepShape, start: int, wanted: int, share: float = 1.0) -> int:
        """See `policy.StepBudget`."""
        limit_s = self._limit_s
        if share < 1.0:
            begun_s = self.model.step_time(step) if step.num_requests else 0.0
            limit_s = begun_s + share * (limit_s - begun_s)
        if self._fits(step, start, wanted, limit_s):
            return wanted
        low, high = min(self.min_chunk, wanted), wanted
        while low < high - 1:
            middle = (low + high) // 2
            if self._fits(step, start, middle, limit_s):
                low = middle
            else:
                high = middle
        return low

    def has_room(self, step: StepShape, start: int, wanted: int) -> bool:
        """Whether the least that `max_chunk` gives fits beside `step`."""
        return self._fits(step, start, min(self.min_chunk, wanted), self._limit_s)

    @property
    def _limit_s(self) -> float:
        return min(self.target_s, self.longest_s / (OVERRUN_MARGIN * self.model.longest_overrun))

    def _fits(self, step: StepShape, start: int, num_tokens: int, limit_s: float) -> bool:
        return self.model.step_time(step.with_chunk(start, num_tokens, 1)) <= limit_s


@dataclass(slots=True)
class FirstTokenBudget:
    """Cuts prompts that do not end in a step for those that do.

    With `share` 2 a step that gives first tokens takes at most twice as long as it would for them
    alone: a short prompt that meets a long one waits for the step under way and is then as good as
    the only one beside another of its own length.
    """

    model: StepTimeModel
    min_chunk: int
    share: float = 2.0

    def beside(self, step: StepShape) -> ItlBudget:
        """The budget for what is added to `step`, which holds only what must be in it."""
        return ItlBudget(self.model, self.share * self.model.step_time(step), self.min_chunk)


def _error_of_median(values: Sequence[float], middle: float) -> float:
    """Standard error, were the values normally distributed but for outliers."""
    spread = 1.4826 * median(abs(value - middle) for value in values)
    return 1.2533 * spread / math.sqrt(len(values))


def _size_class(num_tokens: int) -> int:
    """Which steps count as equally large: a number of tokens that stands for all of them."""
    if num_tokens <= EXACT_UP_TO:
        return num_tokens
    grain = 1 << (num_tokens.bit_length() - 4)
    return (num_tokens + grain // 2) // grain * grain
