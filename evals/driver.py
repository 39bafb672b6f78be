"""Runs requests on an engine of this process to their end. Exercised by `pytest tests/evals`."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import count, islice
from time import perf_counter
from typing import TYPE_CHECKING

from hasten.api.text.sample_text import SampleText, StopRules
from hasten.core.messages import AddRequest
from hasten.evals.target import CannotMeasureError, Drafts, TargetError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hasten.api.text import TokenBytes
    from hasten.core.engine import Engine
    from hasten.core.messages import PositionLogprobs, TokenOutput
    from hasten.core.params import GenerationParams

    Request = tuple[Sequence[int], GenerationParams]


@dataclass(slots=True)
class Finished:
    """What became of a request. Times are seconds since the call began."""

    sent_s: float
    token_ids: list[int] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    arrivals_s: list[float] = field(default_factory=list)
    prompt_logprobs: Sequence[PositionLogprobs | None] | None = None
    finish_reason: str | None = None

    @property
    def text(self) -> str:
        return "".join(self.pieces)


class EngineDriver:
    """Adds requests, steps the engine, collects what comes out."""

    def __init__(
        self, engine: Engine, vocabulary: TokenBytes, eos_token_ids: Sequence[int]
    ) -> None:
        self._engine = engine
        self._vocabulary = vocabulary
        self._eos = frozenset(eos_token_ids)
        self._names = count()

    def run(
        self,
        requests: Sequence[Request],
        *,
        stops: Sequence[tuple[str, ...]] | None = None,
        fresh_cache: bool = False,
        concurrency: int | None = None,
    ) -> list[Finished]:
        """Run all, at most `concurrency` at a time, and return what each gave, in order.

        Raises CannotMeasureError when the engine refuses one, TargetError when it breaks.
        """
        begin = perf_counter()
        salt = f"fresh {next(self._names)}" if fresh_cache else ""
        waiting = deque(enumerate(requests))
        open_requests: dict[str, tuple[Finished, SampleText]] = {}
        done: dict[int, Finished] = {}
        while waiting or open_requests:
            room = len(requests) if concurrency is None else concurrency - len(open_requests)
            for index, request in list(islice(waiting, max(room, 0))):
                waiting.popleft()
                name = self._add(request, salt)
                done[index] = Finished(perf_counter() - begin)
                rules = StopRules(stops[index] if stops else (), eos_token_ids=self._eos)
                open_requests[name] = done[index], SampleText(self._vocabulary, rules)
            for output in self._step():
                self._take(output, open_requests, perf_counter() - begin)
        return [done[index] for index in range(len(requests))]

    def drafts(self) -> Drafts:
        stats = self._engine.stats()
        return Drafts(stats.num_draft_tokens, stats.num_accepted_draft_tokens)

    def abort_all(self) -> None:
        self._engine.abort_all()

    def _add(self, request: Request, salt: str) -> str:
        token_ids, params = request
        name = f"eval-{next(self._names)}"
        refused = self._engine.add_request(
            AddRequest(
                request_id=name,
                prompt_token_ids=list(token_ids),
                params=params,
                cache_salt=salt,
            )
        )
        if refused is not None:
            self.abort_all()
            raise CannotMeasureError(f"the engine refuses a request: {refused.message}")
        return name

    def _step(self) -> list[TokenOutput]:
        try:
            return self._engine.step()
        except Exception as error:
            # Whatever breaks an engine, a run must end with its name and never as a pass.
            raise TargetError(f"the engine broke: {type(error).__name__}: {error}") from error

    def _take(
        self,
        output: TokenOutput,
        open_requests: dict[str, tuple[Finished, SampleText]],
        now_s: float,
    ) -> None:
        finished, text = open_requests[output.request_id]
        delta = text.push(output)
        finished.token_ids.extend(output.token_ids)
        finished.arrivals_s.extend([now_s] * len(output.token_ids))
        finished.pieces.append(delta.text)
        if output.prompt_logprobs is not None:
            finished.prompt_logprobs = output.prompt_logprobs
        if delta.finish_reason is not None:
            finished.finish_reason = delta.finish_reason
            del open_requests[output.request_id]
            if output.finish_reason is None:
                self._engine.abort([output.request_id])
