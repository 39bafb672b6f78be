"""One sample that a client waits for, and the outputs that report on it.

Exercised by `pytest tests/unit/core/test_engine.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
from hasten.core.batch import scored_prompt_tokens
from hasten.core.beams import hypothesis_params
from hasten.core.messages import PositionLogprobs, TokenOutput
from hasten.core.request import FinishReason, Request, RequestId
from hasten.core.verify import StopRule

if TYPE_CHECKING:
    from hasten.core.messages import AddRequest
    from hasten.core.plan import PlannedRequest
    from hasten.kernels.step import StepResult


@dataclass(slots=True, eq=False)
class Sample:
    """A request of the scheduler together with what its client has been told.

    `num_cached_tokens` is as of the first output and None before it: a preempted request finds
    its own blocks in the cache, which is nothing to report. It waited for `queue_s` until it was
    let in.
    """

    request: Request
    stop: StopRule
    prompt_logprobs: list[PositionLogprobs | None] | None
    num_cached_tokens: int | None = None
    arrived_s: float = 0.0
    queue_s: float | None = None

    @classmethod
    def of(cls, request: Request, arrived_s: float = 0.0) -> Sample:
        """The sample of a request of which nothing has been reported."""
        params = request.params
        return cls(
            request,
            StopRule(params.terminal_token_ids, params.max_tokens),
            [None] * request.num_prompt_tokens if request.scores_prompt else None,
            arrived_s=arrived_s,
        )

    @property
    def request_id(self) -> RequestId:
        return self.request.request_id

    def collect_prompt_scores(
        self, planned: PlannedRequest, first_row: int, result: StepResult
    ) -> None:
        """Keep the prompt's log-probabilities that this step computed, if they are wanted."""
        num_top = self.request.params.prompt_logprobs
        if self.prompt_logprobs is None or num_top is None or not self.request.scores_prompt:
            return
        scored = scored_prompt_tokens(planned, self.request)
        for row, idx in enumerate(scored, start=first_row):
            self.prompt_logprobs[idx] = _logprobs_at(result, row, num_top)

    def embedding_output(self, embedding: list[float]) -> TokenOutput:
        """The one output of a request that pools: the token that was chosen is of no interest."""
        return TokenOutput(
            request_id=self.request.group_id,
            token_ids=[],
            finish_reason=FinishReason.STOP.value,
            num_cached_tokens=self.request.num_cached_tokens,
            embedding=embedding,
        )

    def last_output(self, reason: FinishReason) -> TokenOutput:
        """The output of a sample that ends without another token."""
        return TokenOutput(
            request_id=self.request.group_id,
            sample_idx=self.request.sample_idx,
            token_ids=[],
            finish_reason=reason.value,
            num_cached_tokens=self.num_cached_tokens or 0,
        )


@dataclass(slots=True, eq=False)
class Outcome:
    """What one step gave one sample: the tokens at logit rows [first_row, first_row + n).

    `num_drafts` were verified, and `num_accepted_drafts` of them were right and kept.
    """

    sample: Sample
    tokens: list[int]
    first_row: int
    finish_reason: FinishReason | None
    num_drafts: int = 0
    num_accepted_drafts: int = 0

    def first_output(self, result: StepResult) -> TokenOutput:
        """The output that carries the prompt's log-probabilities and how the request began."""
        sample = self.sample
        sample.num_cached_tokens = sample.request.num_cached_tokens
        return msgspec.structs.replace(
            self.next_output(result), prompt_logprobs=sample.prompt_logprobs, queue_s=sample.queue_s
        )

    def next_output(self, result: StepResult) -> TokenOutput:
        """What the step says of the sample."""
        sample, tokens, reason = self.sample, self.tokens, self.finish_reason
        num_top = sample.request.params.logprobs
        logprobs = None
        if num_top is not None:
            rows = range(self.first_row, self.first_row + len(tokens))
            logprobs = [_logprobs_at(result, row, num_top) for row in rows]
        return TokenOutput(
            request_id=sample.request.group_id,
            sample_idx=sample.request.sample_idx,
            token_ids=tokens,
            logprobs=logprobs,
            finish_reason=None if reason is None else reason.value,
            stop_token_id=tokens[-1] if reason is FinishReason.STOP else None,
            num_cached_tokens=sample.num_cached_tokens or 0,
            num_drafts=self.num_drafts,
            num_accepted_drafts=self.num_accepted_drafts,
        )


def make_samples(added: AddRequest, first_arrival: int, now_s: float) -> list[Sample]:
    """The n samples of a client's request; the prompt is scored by sample 0 alone.

    A beam search begins with one, whose hypotheses are forks of it.
    """
    params = added.params if added.params.beam is None else hypothesis_params(added.params)
    unscored = msgspec.structs.replace(params, prompt_logprobs=None) if params.n > 1 else params
    prompt = tuple(added.prompt_token_ids)
    samples = []
    for idx in range(params.n):
        request = Request(
            request_id=RequestId(f"{added.request_id}/{idx}"),
            group_id=added.request_id,
            prompt_token_ids=prompt,
            params=unscored if idx else params,
            arrival=first_arrival + idx,
            sample_idx=idx,
            priority=added.priority,
            client=added.client,
            cache_extra=added.cache_salt.encode(),
            pooling=added.pooling,
        )
        samples.append(Sample.of(request, now_s))
    return samples


def _logprobs_at(result: StepResult, row: int, num_top: int) -> PositionLogprobs:
    return PositionLogprobs(
        float(result.logprobs[row]),
        result.top_ids[row, :num_top].tolist(),
        result.top_logprobs[row, :num_top].tolist(),
    )
