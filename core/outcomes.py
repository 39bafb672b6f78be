"""From the arrays of a step's result to what each sample keeps of it, and what its client is told.

    result   rows of request a | b | c      `StepResult`, for all requests flat
      read   -> prompt scores, embeddings and beams get theirs; an `Outcome` per sample that goes on
      report -> a `TokenOutput` per outcome

Whether a draft was right and where an output ends is `core.verify`'s to say. Pure. Exercised by
`pytest tests/unit/core/test_engine.py tests/unit/core/test_beams.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hasten.core.batch import chooses_tokens
from hasten.core.request import FinishReason
from hasten.core.samples import Outcome
from hasten.core.verify import num_kept

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hasten.core.beams import Beams
    from hasten.core.counters import EngineCounters
    from hasten.core.grammar_gate import GrammarGate
    from hasten.core.messages import TokenOutput
    from hasten.core.parts import EngineParts
    from hasten.core.plan import PlannedRequest, StepPlan
    from hasten.core.request import RequestId
    from hasten.core.samples import Sample
    from hasten.kernels.step import StepResult


class OutcomeReader:
    """Reads the results of one engine's steps; `samples` are the open ones, by id."""

    def __init__(
        self,
        parts: EngineParts,
        samples: Mapping[RequestId, Sample],
        gate: GrammarGate,
        beams: Beams,
        counters: EngineCounters,
    ) -> None:
        self._scheduler = parts.scheduler
        self._pooler = parts.pooler
        self._samples = samples
        self._gate = gate
        self._beams = beams
        self._counters = counters

    def read(self, plan: StepPlan, result: StepResult) -> list[Outcome]:
        """What every sample that got tokens keeps of them. Collects prompt scores on the way."""
        if self._pooler is not None:
            self._pooler.collect(plan, self._scheduler.requests)
        chosen = result.token_ids.tolist()
        outcomes = []
        end = 0
        for planned in plan.requests:
            begin, end = end, end + planned.num_logit_rows
            if begin == end:
                continue
            sample = self._samples[planned.request_id]
            sample.collect_prompt_scores(planned, begin, result)
            if not chooses_tokens(planned, sample.request):
                continue
            row = end - planned.num_drafts - 1
            if self._beams.take(sample.request, row, result):
                continue
            outcomes.append(self._judge(sample, planned, chosen[row:end], row))
        return outcomes

    def _judge(
        self, sample: Sample, planned: PlannedRequest, chosen: list[int], row: int
    ) -> Outcome:
        """What stands of `chosen`, behind the accepted tokens and behind each draft."""
        request, num_drafts = sample.request, planned.num_drafts
        if self._gate.has_failed(request):
            return Outcome(sample, chosen[:1], row, FinishReason.GRAMMAR)
        num_right = 0
        if num_drafts:
            num_right = num_kept(chosen, request.draft_token_ids[:num_drafts]) - 1
        kept, reason = sample.stop.cut(chosen[: num_right + 1], request.num_output_tokens)
        num_right = min(num_right, kept)
        self._counters.drafts.count(num_drafts, num_right)
        return Outcome(sample, chosen[:kept], row, reason, num_drafts, num_right)

    def report(self, outcomes: Sequence[Outcome], result: StepResult) -> list[TokenOutput]:
        """What clients are told of these."""
        return [self._output(outcome, result) for outcome in outcomes]

    def _output(self, outcome: Outcome, result: StepResult) -> TokenOutput:
        sample = outcome.sample
        if self._pooler is not None and sample.request.pooling:
            return sample.embedding_output(self._pooler.pop(sample.request))
        self._counters.num_generated_tokens += len(outcome.tokens)
        if sample.num_cached_tokens is not None:
            return outcome.next_output(result)
        self._counters.num_cached_prompt_tokens += sample.request.num_cached_tokens
        return outcome.first_output(result)
