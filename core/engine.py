"""The engine: requests in, one step at a time, tokens out.

    add_request -> [scheduler] -> plan -> [batch builder] -> batch -> [executor] -> result
                       ^                                                              |
                       |                 tokens kept                                  v
                       +----------------------------------------- verify drafts, find the end

It owns what a client's request is (n samples under one id, their outputs); who computes what and
when belongs to the scheduler, and arithmetic to the executor. It runs in one thread and blocks
only in the executor. Exercised by `pytest tests/unit/core/test_engine.py tests/cpu/engine`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from time import perf_counter, perf_counter_ns
from typing import TYPE_CHECKING

from hasten.core.batch import BatchBuilder, chooses_tokens
from hasten.core.beams import Beams
from hasten.core.deadlines import Deadlines
from hasten.core.draft_counters import MAX_DEPTH, DraftCounters
from hasten.core.grammar_gate import GrammarGate
from hasten.core.inspection import inspect
from hasten.core.isolation import at_fault, without
from hasten.core.latency import StepShape
from hasten.core.messages import RequestRefused, Stats
from hasten.core.request import FinishReason, Request, RequestStatus
from hasten.core.samples import Outcome, Sample, make_samples
from hasten.core.validation import why_refused
from hasten.core.verify import num_kept

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hasten.core.beams import Moves
    from hasten.core.messages import AddRequest, EngineReady, EngineState, TokenOutput
    from hasten.core.parts import EngineParts
    from hasten.core.plan import StepPlan
    from hasten.core.request import RequestId
    from hasten.kernels.step import StepBatch, StepResult


@dataclass(slots=True)
class StepTimings:
    """Nanoseconds spent in each part of all steps so far."""

    num_steps: int = 0
    schedule_ns: int = 0
    prepare_ns: int = 0
    model_ns: int = 0
    output_ns: int = 0
    update_ns: int = 0
    propose_ns: int = 0

    def add(self, marks: Sequence[int]) -> None:
        """Count one step; `marks` are the clock before each part, in order, and after the last."""
        begin, planned, prepared, computed, reported, updated, end = marks
        self.num_steps += 1
        self.schedule_ns += planned - begin
        self.prepare_ns += prepared - planned
        self.model_ns += computed - prepared
        self.output_ns += reported - computed
        self.update_ns += updated - reported
        self.propose_ns += end - updated

    def seconds(self) -> dict[str, float]:
        """By part; where a part's name ends in "_ns" here, it does not there."""
        parts = (part.name for part in fields(self) if part.name.endswith("_ns"))
        return {name.removesuffix("_ns"): getattr(self, name) * 1e-9 for name in parts}

    def reset(self) -> None:
        for part in fields(self):
            setattr(self, part.name, 0)


@dataclass(slots=True)
class _Counters:
    num_steps: int = 0
    num_prompt_tokens: int = 0
    num_generated_tokens: int = 0
    num_cached_prompt_tokens: int = 0
    step_s: float = 0.0
    predicted_step_s: float = 0.0


class Engine:
    """Continuous batching over one model."""

    def __init__(self, parts: EngineParts) -> None:
        self.timings = StepTimings()
        self._parts = parts
        self._scheduler = parts.scheduler
        self._executor = parts.executor
        self._limits = parts.limits
        self._gate = GrammarGate(parts.grammars)
        self._beams = Beams()
        self._batches = BatchBuilder(
            parts.capacity, parts.limits.vocab_size, parts.blocks, parts.grammars
        )
        self._samples: dict[RequestId, Sample] = {}
        self._open: dict[str, dict[int, RequestId]] = {}
        self._arrivals = 0
        self._counters = _Counters()
        self._drafts = DraftCounters()
        self._deadlines = Deadlines()

    @property
    def has_work(self) -> bool:
        """Whether `step` has something to do."""
        return bool(self._samples)

    def ready_message(self) -> EngineReady:
        """What a client needs to know about this engine."""
        return self._parts.ready

    def add_request(self, request: AddRequest) -> RequestRefused | None:
        """Queue a request. Returns a refusal, with the numbers, or None.

        Of this request, if it can never run or there are too many; or of another that waits, if
        that has to make room for this one.
        """
        if request.request_id in self._open:
            return RequestRefused(
                request_id=request.request_id,
                field="request_id",
                message=f"request id {request.request_id!r} is in use",
            )
        refused = why_refused(request, self._limits) or self._gate.why_refused(request)
        if refused is not None:
            name, message = refused
            return RequestRefused(request_id=request.request_id, field=name, message=message)
        now_s = perf_counter()
        samples = make_samples(request, self._arrivals, now_s)
        never_fits = self._scheduler.check_fits(samples[0].request)
        if never_fits is not None:
            return RequestRefused(request_id=request.request_id, message=never_fits)
        self._beams.add(request.params, samples[0])
        for sample in samples:
            self._open_sample(sample)
            if not self._gate.holds(sample.request):
                self._scheduler.add(sample.request)
        self._arrivals += len(samples)
        self._counters.num_prompt_tokens += len(request.prompt_token_ids)
        if request.deadline_s is not None:
            self._deadlines.add(request.request_id, now_s + request.deadline_s)
        return self._turn_away(samples[0].request, request.deadline_s)

    def _open_sample(self, sample: Sample) -> None:
        self._samples[sample.request_id] = sample
        opened = self._open.setdefault(sample.request.group_id, {})
        opened[sample.request.sample_idx] = sample.request_id

    def _turn_away(self, newcomer: Request, deadline_s: float | None) -> RequestRefused | None:
        """Refuse whom overload demands: the newcomer or, for its sake, another who waits."""
        overload = self._parts.overload
        if overload is None:
            return None
        turned_away = overload.turned_away(newcomer, deadline_s)
        if turned_away is None:
            return None
        request = turned_away.request
        self._counters.num_prompt_tokens -= request.num_prompt_tokens
        self.abort([request.group_id])
        return RequestRefused(
            request_id=request.group_id,
            message=turned_away.message,
            retry_after_s=turned_away.retry_after_s,
        )

    def abort(self, request_ids: Iterable[str], sample_idx: int | None = None) -> None:
        """Forget requests, or one sample of each, in whatever phase; unknown ids are ignored.

        The samples of a beam search come together, at the end: it cannot be asked for fewer.
        """
        for external_id in request_ids:
            if sample_idx is not None and external_id in self._beams:
                continue
            for idx, request_id in list(self._open.get(external_id, {}).items()):
                if sample_idx is None or idx == sample_idx:
                    self._scheduler.abort(request_id)
                    self._close(self._samples[request_id])

    def abort_all(self) -> list[TokenOutput]:
        """Abort what is open and return an output that says so for each sample."""
        outputs = [
            output
            for group_id in self._open
            for output in self._last_outputs(group_id, FinishReason.ABORT)
        ]
        self.abort(list(self._open))
        return outputs

    def _last_outputs(self, group_id: str, reason: FinishReason) -> list[TokenOutput]:
        """What the open samples of a request say that end without another token."""
        if group_id in self._beams:
            return self._beams.last_outputs(group_id, reason)
        opened = self._open[group_id].values()
        return [self._samples[request_id].last_output(reason) for request_id in opened]

    def _end_late(self) -> list[TokenOutput]:
        """End the requests whose deadline has passed, or cannot be met any more."""
        outputs: list[TokenOutput] = []
        now_s = perf_counter()
        for group_id in self._deadlines.due(now_s):
            left_s = self._deadlines[group_id] - now_s - self._least_s(group_id)
            if left_s > 0:
                self._deadlines.look_again(group_id, now_s + left_s)
                continue
            outputs += self._last_outputs(group_id, FinishReason.DEADLINE)
            self.abort([group_id])
        return outputs

    def _least_s(self, group_id: str) -> float:
        """The least time until a request can have its first token; 0 once it has begun."""
        requests = [
            self._samples[request_id].request for request_id in self._open[group_id].values()
        ]
        first = requests[0]
        if self._parts.overload is None or any(
            request.status is RequestStatus.RUNNING or request.num_preemptions
            for request in requests
        ):
            return 0.0
        num_cached = self._parts.blocks.quote(first).num_shared_tokens
        return self._parts.overload.forecast.prompt_s(first.num_tokens - num_cached)

    def step(self) -> list[TokenOutput]:
        """Compute one step and return what it gave; empty when there was nothing to compute.

        Raises what the executor raises; the engine is not usable afterwards.
        """
        late = self._end_late()
        for request in self._gate.release():
            self._scheduler.add(request)
        marks = [perf_counter_ns()]
        plan = self._scheduler.schedule()
        if plan is None:
            self._gate.wait()
            return late
        marks.append(perf_counter_ns())
        self._note_begun(plan)
        batch = self._batches.build(plan, self._scheduler.requests)
        marks.append(perf_counter_ns())
        begin_s = self._parts.busy_clock()
        try:
            result = self._executor.execute(batch)
        except FloatingPointError:
            return late + self._step_without_faulty(plan)
        busy_s = self._parts.busy_clock() - begin_s
        marks.append(perf_counter_ns())
        self._observe(batch, (marks[-1] - marks[-2]) * 1e-9, busy_s)
        outcomes = self._verify(plan, result)
        outputs = [self._report(outcome, result) for outcome in outcomes]
        marks.append(perf_counter_ns())
        outputs += self._update(plan, outcomes)
        marks.append(perf_counter_ns())
        self._speculate(outcomes)
        marks.append(perf_counter_ns())
        self.timings.add(marks)
        self._counters.num_steps += 1
        return late + outputs

    def _note_begun(self, plan: StepPlan) -> None:
        now_s = perf_counter()
        for request_id in plan.begun:
            sample = self._samples[request_id]
            sample.queue_s = now_s - sample.arrived_s

    def _step_without_faulty(self, plan: StepPlan) -> list[TokenOutput]:
        """End the requests that cannot be computed, and carry out the rest of the step.

        Raises FloatingPointError when the fault is nobody's alone.
        """
        faulty = at_fault(plan, self._compute)
        if not faulty:
            raise FloatingPointError("a step fails, and none of its requests alone")
        outputs: list[TokenOutput] = []
        plan = without(plan, faulty)
        if plan.requests:
            result = self._compute(plan)
            outcomes = self._verify(plan, result)
            outputs += [self._report(outcome, result) for outcome in outcomes]
            outputs += self._update(plan, outcomes)
        for name in faulty:
            if name in self._samples:
                outputs += self._end_faulty(self._samples[name])
        return outputs

    def _end_faulty(self, sample: Sample) -> list[TokenOutput]:
        """End a sample; a hypothesis takes its whole search along."""
        group_id = sample.request.group_id
        if group_id in self._beams:
            outputs = self._last_outputs(group_id, FinishReason.ERROR)
            self.abort([group_id])
            return outputs
        self._scheduler.finish(sample.request_id, FinishReason.ERROR)
        self._close(sample)
        return [sample.last_output(FinishReason.ERROR)]

    def _compute(self, plan: StepPlan) -> StepResult:
        return self._executor.execute(self._batches.build(plan, self._scheduler.requests))

    def _observe(self, batch: StepBatch, seconds: float, busy_s: float) -> None:
        """Let the step-time model learn, and keep what it had expected."""
        observer = self._parts.observer
        if observer is None:
            return
        shape = StepShape.of(batch)
        self._counters.predicted_step_s += observer.step_time(shape)
        self._counters.step_s += seconds
        observer.observe(shape, seconds, busy_s)

    def state(self) -> EngineState:
        """What it works on, for people who watch."""
        return inspect(self._scheduler, self._parts.blocks)

    def stats(self) -> Stats:
        """A snapshot, for metrics."""
        scheduler, blocks, counters = self._scheduler, self._parts.blocks, self._counters
        speculator, overload = self._parts.speculator, self._parts.overload
        return Stats(
            num_running=len(scheduler.running),
            num_waiting=len(scheduler.waiting),
            num_free_blocks=list(blocks.num_free_blocks),
            num_total_blocks=list(blocks.num_usable_blocks),
            num_preemptions=scheduler.num_preemptions,
            num_prompt_tokens=counters.num_prompt_tokens,
            num_generated_tokens=counters.num_generated_tokens,
            num_cached_prompt_tokens=counters.num_cached_prompt_tokens,
            num_recomputed_tokens=scheduler.num_recomputed_tokens,
            num_steps=counters.num_steps,
            num_draft_tokens=self._drafts.num_drafted,
            num_accepted_draft_tokens=self._drafts.num_accepted,
            draft_depths=list(self._drafts.depths),
            accepted_drafts=list(self._drafts.accepted),
            speculation_gain=1.0 if speculator is None else speculator.gain,
            predicted_wait_s=overload.predicted_wait_s() if overload is not None else 0.0,
            step_seconds=counters.step_s,
            predicted_step_seconds=counters.predicted_step_s,
            phase_seconds=self.timings.seconds(),
        )

    def _verify(self, plan: StepPlan, result: StepResult) -> list[Outcome]:
        """What every sample that got tokens keeps of them. Collects prompt scores on the way."""
        if self._parts.pooler is not None:
            self._parts.pooler.collect(plan, self._scheduler.requests)
        chosen = result.token_ids.tolist()
        outcomes = []
        end = 0
        for planned in plan.requests:
            begin, end = end, end + planned.num_logit_rows
            if begin == end:
                continue
            sample = self._samples[planned.request_id]
            request = sample.request
            sample.collect_prompt_scores(planned, begin, result)
            if not chooses_tokens(planned, request):
                continue
            row = end - planned.num_drafts - 1
            if self._beams.take(request, row, result):
                continue
            if self._gate.has_failed(request):
                outcomes.append(Outcome(sample, chosen[row : row + 1], row, FinishReason.GRAMMAR))
                continue
            kept = num_kept(chosen[row:end], request.draft_token_ids[: planned.num_drafts])
            num_right = kept - 1
            kept, reason = sample.stop.cut(chosen[row : row + kept], request.num_output_tokens)
            tokens, num_right = chosen[row : row + kept], min(num_right, kept)
            self._drafts.count(planned.num_drafts, num_right)
            outcomes.append(Outcome(sample, tokens, row, reason, planned.num_drafts, num_right))
        return outcomes

    def _report(self, outcome: Outcome, result: StepResult) -> TokenOutput:
        sample = outcome.sample
        if self._parts.pooler is not None and sample.request.pooling:
            return sample.embedding_output(self._parts.pooler.pop(sample.request))
        self._counters.num_generated_tokens += len(outcome.tokens)
        if sample.num_cached_tokens is not None:
            return outcome.next_output(result)
        self._counters.num_cached_prompt_tokens += sample.request.num_cached_tokens
        return outcome.first_output(result)

    def _update(self, plan: StepPlan, outcomes: Sequence[Outcome]) -> list[TokenOutput]:
        """Let the requests go on or end; returns what beam searches have found."""
        self._scheduler.update(
            plan, {outcome.sample.request_id: outcome.tokens for outcome in outcomes}
        )
        for outcome in outcomes:
            if outcome.finish_reason is not None:
                self._scheduler.finish(outcome.sample.request_id, outcome.finish_reason)
                self._close(outcome.sample)
        return [output for moves in self._beams.decide() for output in self._carry_out(moves)]

    def _carry_out(self, moves: Moves) -> list[TokenOutput]:
        for request in moves.forked:
            self._open_sample(Sample.of(request))
            self._scheduler.add(request)
        for request, token_id in moves.grown:
            self._scheduler.go_on(request, token_id)
        for request in moves.dropped:
            self._scheduler.finish(request.request_id, FinishReason.STOP)
            self._close(self._samples[request.request_id])
        for output in moves.outputs:
            self._counters.num_generated_tokens += len(output.token_ids)
        if moves.outputs:
            self._counters.num_cached_prompt_tokens += moves.outputs[0].num_cached_tokens
        return moves.outputs

    def _close(self, sample: Sample) -> None:
        """The client no longer waits for this sample."""
        request = sample.request
        del self._samples[request.request_id]
        opened = self._open[request.group_id]
        del opened[request.sample_idx]
        if not opened:
            del self._open[request.group_id]
            self._deadlines.forget(request.group_id)
            self._beams.forget(request.group_id)
        self._gate.forget(request)
        if self._parts.speculator is not None:
            self._parts.speculator.forget(request.request_id)
        if self._parts.pooler is not None:
            self._parts.pooler.forget(request.request_id)

    def _speculate(self, outcomes: Sequence[Outcome]) -> None:
        """Hang the next step's drafts on the requests that go on.

        A draft is worth nothing where no token may follow it, so the depth stops one short of
        `max_tokens`.
        """
        speculator = self._parts.speculator
        if speculator is None:
            return
        requests = [outcome.sample.request for outcome in outcomes if outcome.finish_reason is None]
        depths = [
            min(request.max_total_tokens - request.num_tokens - 1, MAX_DEPTH)
            for request in requests
        ]
        drafted = speculator.speculate(requests, depths, self._scheduler.prompts_ahead())
        for request, depth, drafts in zip(requests, depths, drafted, strict=True):
            request.draft_token_ids = list(drafts[:depth])
