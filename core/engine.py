"""The engine: requests in, one step at a time, tokens out.

    add_request -> [scheduler] -> plan -> [batch builder] -> batch -> [executor] -> result
                       ^                                                              |
                       |                 tokens kept                                  v
                       +----------------------------------------- verify drafts, find the end

It owns the loop, and the life of a client's request in it: let in or refused (`add_request`), gone
on with (`step`), ended. Which requests are open says `core.open_requests`, what a step gave them
`core.outcomes`, what was counted `core.counters`; who computes what and when belongs to the
scheduler, and arithmetic to the executor. It runs in one thread and blocks only in the executor.
Exercised by `pytest tests/unit/core/test_engine.py tests/cpu/engine`.
"""

from __future__ import annotations

from time import perf_counter, perf_counter_ns
from typing import TYPE_CHECKING

from hasten.core.batch import BatchBuilder
from hasten.core.beams import Beams
from hasten.core.counters import EngineCounters
from hasten.core.deadlines import Deadlines
from hasten.core.draft_counters import MAX_DEPTH
from hasten.core.grammar_gate import GrammarGate
from hasten.core.inspection import inspect
from hasten.core.isolation import at_fault, without
from hasten.core.latency import StepShape
from hasten.core.messages import RequestRefused
from hasten.core.open_requests import OpenRequests
from hasten.core.outcomes import OutcomeReader
from hasten.core.request import FinishReason, Request, RequestStatus
from hasten.core.samples import Outcome, Sample, make_samples
from hasten.core.validation import why_refused

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hasten.core.beams import Moves
    from hasten.core.counters import StepTimings
    from hasten.core.messages import AddRequest, EngineReady, EngineState, Stats, TokenOutput
    from hasten.core.parts import EngineParts
    from hasten.core.plan import StepPlan
    from hasten.kernels.step import StepBatch, StepResult


class Engine:
    """Continuous batching over one model."""

    def __init__(self, parts: EngineParts) -> None:
        self._parts = parts
        self._scheduler = parts.scheduler
        self._executor = parts.executor
        self._limits = parts.limits
        self._gate = GrammarGate(parts.grammars)
        self._beams = Beams()
        self._batches = BatchBuilder(
            parts.capacity, parts.limits.vocab_size, parts.blocks, parts.grammars
        )
        self._open = OpenRequests()
        self._arrivals = 0
        self._counters = EngineCounters()
        self._deadlines = Deadlines()
        self._longest_waits = Deadlines()
        self._outcomes = OutcomeReader(
            parts, self._open.samples, self._gate, self._beams, self._counters
        )

    @property
    def has_work(self) -> bool:
        """Whether `step` has something to do."""
        return bool(self._open.samples)

    @property
    def timings(self) -> StepTimings:
        """What the parts of its steps have taken."""
        return self._counters.timings

    def ready_message(self) -> EngineReady:
        """What a client needs to know about this engine."""
        return self._parts.ready

    def state(self) -> EngineState:
        """What it works on, for people who watch."""
        return inspect(self._scheduler, self._parts.blocks)

    def stats(self) -> Stats:
        """A snapshot, for metrics."""
        return self._counters.stats(self._parts)

    def add_request(self, request: AddRequest) -> RequestRefused | None:
        """Queue a request. Returns a refusal, with the numbers, or None.

        Of this request, if it can never run or there are too many; or of another that waits, if
        that has to make room for this one.
        """
        refused = self._why_refused(request)
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
            self._open.open(sample)
            if not self._gate.holds(sample.request):
                self._scheduler.add(sample.request)
        self._arrivals += len(samples)
        self._counters.num_prompt_tokens += len(request.prompt_token_ids)
        if request.deadline_s is not None:
            self._deadlines.add(request.request_id, now_s + request.deadline_s)
        if self._parts.overload is not None and self._parts.overload.max_wait_s is not None:
            latest_s = now_s + self._parts.overload.max_wait_s - request.waited_s
            self._longest_waits.add(request.request_id, latest_s)
        return self._turn_away(samples[0].request, request)

    def _why_refused(self, request: AddRequest) -> tuple[str, str] | None:
        """The field that cannot be honoured, and why."""
        if request.request_id in self._open:
            return "request_id", f"request id {request.request_id!r} is in use"
        return why_refused(request, self._limits) or self._gate.why_refused(request)

    def _turn_away(self, newcomer: Request, added: AddRequest) -> RequestRefused | None:
        """Refuse whom overload demands: the newcomer or, for its sake, another who waits."""
        overload = self._parts.overload
        if overload is None:
            return None
        turned_away = overload.turned_away(newcomer, added.deadline_s, added.waited_s)
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
        expected = self._expect(batch)
        marks.append(perf_counter_ns())
        begin_s = self._parts.busy_clock()
        try:
            result = self._executor.execute(batch)
        except FloatingPointError:
            return late + self._step_without_faulty(plan)
        busy_s = self._parts.busy_clock() - begin_s
        marks.append(perf_counter_ns())
        self._observe(expected, (marks[-1] - marks[-2]) * 1e-9, busy_s)
        outcomes = self._outcomes.read(plan, result)
        outputs = self._outcomes.report(outcomes, result)
        marks.append(perf_counter_ns())
        outputs += self._update(plan, outcomes)
        marks.append(perf_counter_ns())
        self._speculate(outcomes)
        marks.append(perf_counter_ns())
        self._counters.timings.add(marks)
        self._counters.num_steps += 1
        return late + outputs

    def _note_begun(self, plan: StepPlan) -> None:
        now_s = perf_counter()
        for request_id in plan.begun:
            sample = self._open.samples[request_id]
            sample.queue_s = now_s - sample.arrived_s
            group_id = sample.request.group_id
            self._longest_waits.forget(group_id)
            if self._parts.overload is not None:
                self._parts.overload.note_begun(group_id, sample.queue_s)

    def _expect(self, batch: StepBatch) -> tuple[StepShape, float] | None:
        """What the step-time model makes of a step, with the seconds that it expects.

        Asked before the model runs, which leaves nothing of us in the processor's caches.
        """
        observer = self._parts.observer
        if observer is None:
            return None
        shape = StepShape.of(batch)
        return shape, observer.step_time(shape)

    def _observe(
        self, expected: tuple[StepShape, float] | None, seconds: float, busy_s: float
    ) -> None:
        """Let the step-time model learn, and keep what it had expected."""
        observer = self._parts.observer
        if observer is None or expected is None:
            return
        shape, expected_s = expected
        self._counters.predicted_step_s += expected_s
        self._counters.step_s += seconds
        observer.observe(shape, seconds, busy_s)

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
        """Do what a beam search has decided, and return what it found."""
        for request in moves.forked:
            self._open.open(Sample.of(request))
            self._scheduler.add(request)
        for request, token_id in moves.grown:
            self._scheduler.go_on(request, token_id)
        for request in moves.dropped:
            self._scheduler.finish(request.request_id, FinishReason.STOP)
            self._close(self._open.samples[request.request_id])
        for output in moves.outputs:
            self._counters.num_generated_tokens += len(output.token_ids)
        if moves.outputs:
            self._counters.num_cached_prompt_tokens += moves.outputs[0].num_cached_tokens
        return moves.outputs

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
            outcomes = self._outcomes.read(plan, result)
            outputs += self._outcomes.report(outcomes, result)
            outputs += self._update(plan, outcomes)
        for name in faulty:
            if name in self._open.samples:
                outputs += self._end_faulty(self._open.samples[name])
        return outputs

    def _compute(self, plan: StepPlan) -> StepResult:
        return self._executor.execute(self._batches.build(plan, self._scheduler.requests))

    def _end_faulty(self, sample: Sample) -> list[TokenOutput]:
        """End a sample; a hypothesis takes its whole search along."""
        group_id = sample.request.group_id
        if group_id in self._beams:
            return self._end(group_id, FinishReason.ERROR)
        self._scheduler.finish(sample.request_id, FinishReason.ERROR)
        self._close(sample)
        return [sample.last_output(FinishReason.ERROR)]

    def _end_late(self) -> list[TokenOutput]:
        """End the requests whose time has passed, or cannot be kept any more."""
        outputs: list[TokenOutput] = []
        now_s = perf_counter()
        for group_id in self._deadlines.late(now_s, self._least_s):
            outputs += self._end(group_id, FinishReason.DEADLINE)
        for group_id in self._longest_waits.late(now_s, self._least_s_in_a_crowd):
            outputs += self._end(group_id, FinishReason.OVERLOAD)
        return outputs

    def _least_s_in_a_crowd(self, group_id: str) -> float:
        """The same for one of many who wait for their turn, and get it together with others."""
        return self._least_s(group_id) * min(self._scheduler.num_seats, len(self._scheduler.queue))

    def _least_s(self, group_id: str) -> float:
        """The least time until a request can have its first token; 0 once it has begun."""
        requests = [sample.request for sample in self._open.samples_of(group_id)]
        if self._parts.overload is None or any(map(_has_begun, requests)):
            return 0.0
        first = requests[0]
        num_cached = self._parts.blocks.quote(first).num_shared_tokens
        return self._parts.overload.forecast.prompt_s(first.num_tokens - num_cached)

    def abort(self, request_ids: Iterable[str], sample_idx: int | None = None) -> None:
        """Forget requests, or one sample of each, in whatever phase; unknown ids are ignored.

        The samples of a beam search come together, at the end: it cannot be asked for fewer.
        """
        for group_id in request_ids:
            if sample_idx is not None and group_id in self._beams:
                continue
            for sample in self._open.samples_of(group_id):
                if sample_idx is None or sample.request.sample_idx == sample_idx:
                    self._scheduler.abort(sample.request_id)
                    self._close(sample)

    def abort_all(self) -> list[TokenOutput]:
        """Abort what is open and return an output that says so for each sample."""
        outputs: list[TokenOutput] = []
        for group_id in self._open.group_ids:
            outputs += self._end(group_id, FinishReason.ABORT)
        return outputs

    def _end(self, group_id: str, reason: FinishReason) -> list[TokenOutput]:
        """End a request without another token, and return what its open samples say of it."""
        if group_id in self._beams:
            outputs = self._beams.last_outputs(group_id, reason)
        else:
            outputs = [sample.last_output(reason) for sample in self._open.samples_of(group_id)]
        self.abort([group_id])
        return outputs

    def _close(self, sample: Sample) -> None:
        """The client no longer waits for this sample."""
        request = sample.request
        self._open.close(sample)
        if request.group_id not in self._open:
            self._deadlines.forget(request.group_id)
            self._longest_waits.forget(request.group_id)
            if self._parts.overload is not None:
                self._parts.overload.forget(request.group_id)
            self._beams.forget(request.group_id)
        self._gate.forget(request)
        if self._parts.speculator is not None:
            self._parts.speculator.forget(request.request_id)
        if self._parts.pooler is not None:
            self._parts.pooler.forget(request.request_id)


def _has_begun(request: Request) -> bool:
    return request.status is RequestStatus.RUNNING or request.num_preemptions > 0
