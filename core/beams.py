"""Beam search: which continuations of a prompt go on, and which of them answer the request.

Terms: a *hypothesis* is one continuation of the prompt, a `Request` of its own while it goes on.
It has *finished* when its last token ends the output or is the `max_tokens`th.

    hypotheses    a         b            each step: report the 2 * width most likely next tokens,
    candidates    ax a. ay  bx by b.     and wait until all have reported (`.` ends the output)

    sorted        ax a. | bx by b. ay    by cumulative log-probability: the first `width`, | others
    finished         a.                  those that end, if among the first `width` (here 2)
    go on         ax      bx             the first `width` of those that do not end

So `b.` counts for nothing: what ends outside the first `width` has not finished. The best of
those that come of one hypothesis goes on in its request, and the others are forks of it; a
hypothesis of which nothing goes on is dropped. Ties go to the hypothesis, then the token, that was
the likelier before, so the outcome is a function of the log-probabilities alone.

Scores and their use as in transformers' `generate` (Wu et al., 2016, without its constant): the
cumulative log-probability over tokens ** length_penalty, the token that ends the output included.

Pure bookkeeping. Exercised by `pytest tests/unit/core/test_beams.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING

from hasten.core.messages import PositionLogprobs, TokenOutput
from hasten.core.request import FinishReason, Request, RequestId
from msgspec.structs import replace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hasten.core.params import Beam, GenerationParams
    from hasten.core.samples import Sample
    from hasten.kernels.step import StepResult


def hypothesis_params(params: GenerationParams) -> GenerationParams:
    """What a step is asked for on behalf of one hypothesis: no sampling, but log-probabilities."""
    assert params.beam is not None
    num_top = max(2 * params.beam.width, params.logprobs or 0)
    return replace(params, n=1, temperature=0.0, logprobs=num_top)


@dataclass(slots=True, eq=False)
class _Hypothesis:
    """`top_ids` and `top_logprobs` are what it reported of its next token; empty before."""

    request: Request
    cum_logprob: float = 0.0
    logprobs: list[PositionLogprobs] = field(default_factory=list)
    top_ids: list[int] = field(default_factory=list)
    top_logprobs: list[float] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class _Continuation:
    """A hypothesis and its `rank`th most likely next token."""

    parent: _Hypothesis
    rank: int
    cum_logprob: float

    @property
    def token_id(self) -> int:
        return self.parent.top_ids[self.rank]

    @property
    def token_ids(self) -> list[int]:
        """The whole output."""
        return [*self.parent.request.output_token_ids, self.token_id]

    def logprobs(self, num_top: int | None) -> list[PositionLogprobs]:
        """Those of every token of the output; of none where nobody asked."""
        if num_top is None:
            return []
        parent = self.parent
        own = PositionLogprobs(
            parent.top_logprobs[self.rank], parent.top_ids[:num_top], parent.top_logprobs[:num_top]
        )
        return [*parent.logprobs, own]


@dataclass(frozen=True, slots=True)
class _Finished:
    score: float
    token_ids: list[int]
    logprobs: list[PositionLogprobs]
    reason: FinishReason


@dataclass(slots=True)
class Moves:
    """What a search decided: who goes on and with which token, forks of those, and who is dropped.

    A search that is over drops everybody and says what it found.
    """

    grown: list[tuple[Request, int]] = field(default_factory=list)
    forked: list[Request] = field(default_factory=list)
    dropped: list[Request] = field(default_factory=list)
    outputs: list[TokenOutput] = field(default_factory=list)


class Beams:
    """The beam searches of one engine, by `group_id`."""

    def __init__(self) -> None:
        self._searches: dict[str, _Search] = {}

    def __contains__(self, group_id: str) -> bool:
        return group_id in self._searches

    def add(self, params: GenerationParams, sample: Sample) -> None:
        """A request has come, and `sample` is the whole of it so far; without a beam, nothing."""
        if params.beam is not None:
            self._searches[sample.request.group_id] = _Search(params, params.beam, sample)

    def take(self, request: Request, row: int, result: StepResult) -> bool:
        """Whether `request` is a hypothesis: then it reports what logit row `row` gave."""
        search = self._searches.get(request.group_id)
        if search is None:
            return False
        search.report(request, row, result)
        return True

    def decide(self) -> list[Moves]:
        """The moves of every search all of whose hypotheses have reported."""
        return [search.decide() for search in self._searches.values() if search.is_complete]

    def last_outputs(self, group_id: str, reason: FinishReason) -> list[TokenOutput]:
        """What a search says that ends without an answer."""
        return self._searches[group_id].last_outputs(reason)

    def forget(self, group_id: str) -> None:
        """The request has ended. Unknown ids are ignored."""
        self._searches.pop(group_id, None)


class _Search:
    """One request's. All its hypotheses are equally long, and the likeliest come first."""

    def __init__(self, params: GenerationParams, beam: Beam, sample: Sample) -> None:
        self._params = params
        self._beam = beam
        self._terminal_ids = params.terminal_token_ids
        self._sample = sample
        self._hypotheses = [_Hypothesis(sample.request)]
        self._finished: list[_Finished] = []
        self._num_requests = 1

    def report(self, request: Request, row: int, result: StepResult) -> None:
        hypothesis = next(each for each in self._hypotheses if each.request is request)
        hypothesis.top_ids = result.top_ids[row].tolist()
        hypothesis.top_logprobs = result.top_logprobs[row].tolist()

    @property
    def is_complete(self) -> bool:
        return all(hypothesis.top_ids for hypothesis in self._hypotheses)

    def decide(self) -> Moves:
        """The moves of a complete step.

        The first `width` candidates end or go on, so a search that is over has found `width`.
        """
        length = self._hypotheses[0].request.num_output_tokens + 1
        width, candidates = self._beam.width, self._candidates()
        self._finish([each for each in candidates[:width] if self._ends(each)], FinishReason.STOP)
        best = [each for each in candidates if not self._ends(each)][:width]
        if length == self._params.max_tokens:
            self._finish(best, FinishReason.LENGTH)
        elif best and not self._is_over(best[0].cum_logprob, length):
            return self._go_on(best)
        everybody = [hypothesis.request for hypothesis in self._hypotheses]
        return Moves(dropped=everybody, outputs=self._answer())

    def _candidates(self) -> list[_Continuation]:
        """Every reported continuation of every hypothesis, the most likely first."""
        candidates = [
            _Continuation(parent, rank, parent.cum_logprob + parent.top_logprobs[rank])
            for parent in self._hypotheses
            for rank in range(2 * self._beam.width)
        ]
        candidates.sort(key=attrgetter("cum_logprob"), reverse=True)  # stable: ties as they stand
        return candidates

    def _ends(self, continuation: _Continuation) -> bool:
        return continuation.token_id in self._terminal_ids

    def _finish(self, continuations: Sequence[_Continuation], reason: FinishReason) -> None:
        """Count these among the finished, of which the best are kept."""
        for each in continuations:
            token_ids, logprobs = each.token_ids, each.logprobs(self._params.logprobs)
            score = self._score(each.cum_logprob, len(token_ids))
            self._finished.append(_Finished(score, token_ids, logprobs, reason))
        self._finished.sort(key=attrgetter("score"), reverse=True)
        del self._finished[self._beam.width :]

    def _is_over(self, cum_logprob: float, length: int) -> bool:
        """Whether to stop, if the best that goes on has this log-probability."""
        beam = self._beam
        if len(self._finished) < beam.width:
            return False
        if beam.early_stopping is True:
            return True
        if beam.early_stopping == "never" and beam.length_penalty > 0:
            length = self._params.max_tokens
        return self._finished[-1].score >= self._score(cum_logprob, length)

    def _score(self, cum_logprob: float, length: int) -> float:
        return cum_logprob / math.pow(length, self._beam.length_penalty)

    def _go_on(self, best: Sequence[_Continuation]) -> Moves:
        moves, hypotheses = Moves(), []
        grown: set[RequestId] = set()
        for each in best:
            request = each.parent.request
            if request.request_id in grown:
                request = self._fork(each)
                moves.forked.append(request)
            else:
                grown.add(request.request_id)
                moves.grown.append((request, each.token_id))
            logprobs = each.logprobs(self._params.logprobs)
            hypotheses.append(_Hypothesis(request, each.cum_logprob, logprobs))
        moves.dropped = [
            parent.request for parent in self._hypotheses if parent.request.request_id not in grown
        ]
        self._hypotheses = hypotheses
        return moves

    def _fork(self, continuation: _Continuation) -> Request:
        parent = continuation.parent.request
        idx, self._num_requests = self._num_requests, self._num_requests + 1
        return Request(
            request_id=RequestId(f"{parent.group_id}/{idx}"),
            group_id=parent.group_id,
            prompt_token_ids=parent.prompt_token_ids,
            params=replace(parent.params, prompt_logprobs=None),
            arrival=parent.arrival,
            sample_idx=idx,
            priority=parent.priority,
            client=parent.client,
            cache_extra=parent.cache_extra,
            token_ids=[*parent.token_ids, continuation.token_id],
            num_inherited_tokens=parent.num_tokens,
        )

    def _answer(self) -> list[TokenOutput]:
        best = self._finished[: self._params.n]
        outputs = [self._output(idx, finished) for idx, finished in enumerate(best)]
        sample = self._sample
        outputs[0] = replace(
            outputs[0], prompt_logprobs=sample.prompt_logprobs, queue_s=sample.queue_s
        )
        return outputs

    def _output(self, idx: int, finished: _Finished) -> TokenOutput:
        request, is_stop = self._sample.request, finished.reason is FinishReason.STOP
        return TokenOutput(
            request_id=request.group_id,
            sample_idx=idx,
            token_ids=finished.token_ids,
            logprobs=None if self._params.logprobs is None else finished.logprobs,
            finish_reason=finished.reason.value,
            stop_token_id=finished.token_ids[-1] if is_stop else None,
            num_cached_tokens=request.num_cached_tokens,
        )

    def last_outputs(self, reason: FinishReason) -> list[TokenOutput]:
        group_id = self._sample.request.group_id
        return [
            TokenOutput(
                request_id=group_id, sample_idx=idx, token_ids=[], finish_reason=reason.value
            )
            for idx in range(self._params.n)
        ]
