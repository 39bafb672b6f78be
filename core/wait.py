"""How long a request would wait for its first token, as far as one can tell.

Two things are waited for: a seat among the running, which the outputs ahead have to vacate, and
the prompts ahead, which have to be computed. Outputs are expected to get as long as others got
(`core.forecast`), steps to take as long as `core.latency` predicts. Speculation, the prefix cache
and clients that leave early make the truth shorter; what happens between steps, and prompts that
come in few at a time, make it longer: by how much is learned from those who have waited.

Pure. Exercised by `pytest tests/unit/core/test_overload.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heapify, heappush, heapreplace
from typing import TYPE_CHECKING

import numpy as np
from hasten.core.latency import EMPTY_STEP, StepShape

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hasten.core.latency import StepTimeModel
    from hasten.core.request import Request
    from hasten.core.scheduler import Scheduler


PRIOR_PACE, PRIOR_WAITS_S = 1.3, 2.0
"""As if waits of so many seconds had been so many times longer: what a fresh server takes."""
MEMORY = 127 / 128
"""A wait counts less by this factor for each that was seen after it."""
LEAST_LEARNED_S = 0.05
"""Of shorter waits nothing is learned: most of one is the step under way."""


@dataclass(slots=True)
class Pace:
    """How many times longer than the steps that one knows of waits are: all of them together.

    Not their mean ratio: of a short wait most is chance.
    """

    prior: float = PRIOR_PACE
    _waited_s: float = 0.0
    _computed_s: float = 0.0

    @property
    def factor(self) -> float:
        waited_s = self._waited_s + self.prior * PRIOR_WAITS_S
        return waited_s / (self._computed_s + PRIOR_WAITS_S)

    def learn(self, computed_s: float, waited_s: float) -> None:
        """Somebody has waited for `waited_s`, of whom `WaitForecast.steps_s` had said less."""
        if computed_s >= LEAST_LEARNED_S:
            self._waited_s = MEMORY * self._waited_s + waited_s
            self._computed_s = MEMORY * self._computed_s + computed_s


@dataclass(slots=True)
class WaitForecast:
    """The forecast for one scheduler, whose steps take what `step_times` says."""

    scheduler: Scheduler
    step_times: StepTimeModel
    max_num_batched_tokens: int
    pace: Pace = field(default_factory=Pace)

    def seconds(self, ahead: Sequence[Request], num_prompt_tokens: int) -> float:
        """From now to the first token of a prompt that lines up behind `ahead`."""
        return self.after(self.steps_s(ahead, num_prompt_tokens), num_prompt_tokens)

    def after(self, steps_s: float, num_prompt_tokens: int) -> float:
        """The same where the steps of others take `steps_s`, as `steps_s` says."""
        return self.pace.factor * steps_s + self.prompt_s(num_prompt_tokens)

    def steps_s(self, ahead: Sequence[Request], num_prompt_tokens: int) -> float:
        """How much of that the steps of others take."""
        num_tokens = _num_uncomputed(self.scheduler.running) + _num_uncomputed(ahead)
        steps_s = self._steps_to_a_seat(ahead) * self._decode_step_s(ahead)
        prompts_s = self.prompt_s(num_tokens + num_prompt_tokens) - self.prompt_s(num_prompt_tokens)
        return steps_s + prompts_s

    def prompt_s(self, num_tokens: int) -> float:
        """The time that so many tokens of prompts take, with the machine to themselves."""
        num_at_once = min(num_tokens, self.max_num_batched_tokens)
        if num_at_once <= 0:
            return 0.0
        step_s = self.step_times.step_time(EMPTY_STEP.with_chunk(0, num_at_once, 1))
        return step_s * num_tokens / num_at_once

    def _steps_to_a_seat(self, ahead: Sequence[Request]) -> float:
        """Each of `ahead` takes the seat that is free first; then it is the newcomer's turn."""
        running, num_seats = self.scheduler.running, self.scheduler.num_seats
        if len(running) + len(ahead) < num_seats:
            return 0.0
        free_at = self._steps_to_go(running)
        heapify(free_at)
        for num_steps in self._steps_to_go(ahead):
            if len(free_at) < num_seats:
                heappush(free_at, num_steps)
            else:
                heapreplace(free_at, free_at[0] + num_steps)
        return free_at[0]

    def _steps_to_go(self, requests: Sequence[Request]) -> list[float]:
        ages = np.array([request.num_output_tokens for request in requests], np.int64)
        most = np.array([request.params.max_tokens for request in requests], np.int64)
        more: list[float] = self.scheduler.output_lengths.expected_more(ages, most - ages).tolist()
        return more

    def _decode_step_s(self, ahead: Sequence[Request]) -> float:
        """Of those who run, and of the next ones where they are fewer than there are seats."""
        seated = [*self.scheduler.running, *ahead][: self.scheduler.num_seats]
        num_read = sum(request.num_tokens for request in seated)
        shape = StepShape(len(seated), len(seated), num_read, num_read, len(seated))
        return self.step_times.step_time(shape) if seated else 0.0


def _num_uncomputed(requests: Iterable[Request]) -> int:
    """Prompt tokens to go; what the cache may spare those who wait is not looked up."""
    return sum(request.num_tokens - request.num_computed_tokens for request in requests)
