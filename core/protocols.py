"""What the engine loop calls but does not implement: the executor and the optional features.

`core` knows none of these by name; whoever builds an engine hands the objects in. Exercised with
scripted implementations by `pytest tests/unit/core/test_engine.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hasten.core.blocks import BlockManager
    from hasten.core.drafter import Drafter
    from hasten.core.latency import StepShape, StepTimeModel
    from hasten.core.options import EngineOptions
    from hasten.core.request import Request, RequestId
    from hasten.kernels.step import I32, U32, StepBatch, StepResult


class Executor(Protocol):
    """Runs one step of the model, on whatever devices it was built for."""

    def execute(self, batch: StepBatch) -> StepResult:
        """Compute one step. The result's arrays are valid until the next call."""
        ...


class StepObserver(Protocol):
    """Told what each step was and how long the executor took for it (the step-time model)."""

    def step_time(self, shape: StepShape) -> float:
        """The seconds that it expects."""
        ...

    def observe(self, shape: StepShape, seconds: float, busy_s: float | None = None) -> None:
        """`busy_s` of the seconds were the executor's own work; None: unknown."""
        ...


class Speculator(Protocol):
    """Guesses the next tokens of requests. A wrong guess costs time and never changes a token."""

    @property
    def methods(self) -> frozenset[str]:
        """The ways of guessing that a request may ask for."""
        ...

    @property
    def gain(self) -> float:
        """Estimated tokens per second lately, over those without guesses."""
        ...

    def speculate(
        self, requests: Sequence[Request], max_depths: Sequence[int], beside: StepShape
    ) -> Sequence[Sequence[int]]:
        """At most `max_depths[i]` drafts for `requests[i]`; fewer, or none, is always allowed.

        Called after each step with the requests that got a token in it and go on; their
        `token_ids` hold it already. `beside` is what the next step will compute of prompts. Must
        not modify the requests.
        """
        ...

    def forget(self, request_id: RequestId) -> None:
        """The request has ended: drop what is kept for it. Unknown ids are ignored."""
        ...


class MaskJob(NamedTuple):
    """The rows of one request that want masks: behind its accepted tokens, and behind each draft.

    They are rows [first_row, first_row + len(drafts) + 1) of the step's masks.
    """

    request: Request
    drafts: Sequence[int]
    first_row: int


class Grammars(Protocol):
    """Says which tokens may follow where an output must follow a grammar (`params.grammar`).

    A mask is a function of the request's parameters and of the tokens before the row. Compiling
    happens in a thread of its own, beside the model.
    """

    def prepare(self, request: Request) -> None:
        """Begin to compile the grammar of a request that has arrived."""
        ...

    def is_ready(self, request_id: RequestId) -> bool:
        """Whether that has ended, well or not."""
        ...

    def wait(self, timeout_s: float) -> None:
        """Return once something that was begun has ended, or after the timeout."""
        ...

    def failure(self, request_id: RequestId) -> str | None:
        """Why the request cannot go on; None when it can."""
        ...

    def begin_masks(self, jobs: Sequence[MaskJob], masks: U32, ready: I32) -> None:
        """Begin to write all rows of `masks` [M, ceil(vocab / 32)], and then 1 into `ready` [1].

        Each row allows some token, also those of a request that fails. The requests do not change
        until `ready` is set.
        """
        ...

    def forget(self, request_id: RequestId) -> None:
        """The request has ended: drop what is kept for it. Unknown ids are ignored."""
        ...


if TYPE_CHECKING:
    GrammarsFactory = Callable[[EngineOptions, bool], Grammars]
    """Makes the grammars of an engine; the flag says whether a step leaves a processor idle."""

    SpeculatorFactory = Callable[
        [EngineOptions, StepTimeModel, Sequence[Drafter], BlockManager], Speculator | None
    ]
    """Makes the speculator that options ask for; None when they ask for none."""
