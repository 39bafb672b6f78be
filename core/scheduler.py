"""Who computes how many tokens in the next step.

There is one idea: `num_computed_tokens` of every request catches up with its tokens. Prefill in
chunks, decoding, verifying drafts, what the prefix cache spares and recomputing after a preemption
are all the same catching up.

    schedule():  0. a waiting request displaces running ones of less urgent levels
                 1. running requests with one token to go, and their drafts   ("caught up")
                 2. running requests with more to go, in chunks               ("behind")
                 3. waiting requests, in the policy's order, as long as they fit; what
                    these do not use goes to the chunks of 2; a step that gives first tokens
                    is kept short for them, where `first_tokens` says so
                 4. blocks for drafts, from what is left over
    update():    tokens are appended, rejected drafts dropped, full blocks published

Hypotheses of a beam search get no token in `update`: once computed they are *held*, with nothing
to compute, until `go_on` says how they go on. They keep their blocks meanwhile, unless others need
those more.

A request is let in only if all its tokens so far fit and `core.admission` has no doubts; the blocks
it does not take at once are reserved. When a running one needs a block and none is left,
`core.preemption` names a victim, which comes back in its old place of the queue.

Pure bookkeeping: no torch, no clock, no randomness. Exercised by
`pytest tests/unit/core/test_scheduler.py tests/unit/core/test_scheduler_simulation.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING

from hasten.core.admission import Admission
from hasten.core.forecast import Forecast
from hasten.core.latency import EMPTY_STEP
from hasten.core.plan import PlannedRequest, StepPlan
from hasten.core.policy import WaitingQueue
from hasten.core.preemption import choose_victim, displaced_by
from hasten.core.request import FinishReason, RequestStatus
from hasten.core.siblings import Siblings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hasten.core.blocks import AdmissionQuote, BlockManager
    from hasten.core.forecast import OutputLengths
    from hasten.core.latency import StepShape
    from hasten.core.options import SchedulerOptions
    from hasten.core.policy import FirstTokens, QueuePolicy, StepBudget
    from hasten.core.request import Request, RequestId

RUNNING = RequestStatus.RUNNING
SHARED = 0.5
"""Of the time that a step has left, what one prompt takes where others are behind it."""


@dataclass(slots=True, eq=False)
class _Step:
    """A step while it is being planned."""

    num_tokens_left: int
    preempted: list[RequestId]
    caught_up: list[tuple[Request, int]] = field(default_factory=list)  # with number of drafts
    chunks: list[tuple[Request, int]] = field(default_factory=list)  # with number of tokens


class Scheduler:
    """Plans steps over requests and their blocks.

    `requests` holds all that have not ended, by id; `running` those with blocks, in the order in
    which they were let in.
    """

    def __init__(
        self,
        options: SchedulerOptions,
        blocks: BlockManager,
        policy: QueuePolicy,
        budget: StepBudget | None = None,
        forecast: Forecast | None = None,
        first_tokens: FirstTokens | None = None,
        prompt_budget: StepBudget | None = None,
    ) -> None:
        self.requests: dict[RequestId, Request] = {}
        self.running: list[Request] = []
        self.num_preemptions = 0
        self.num_computed_tokens = 0
        self.num_recomputed_tokens = 0
        self.num_cached_tokens = 0
        self._max_num_seqs = options.max_num_seqs
        self._max_num_tokens = options.max_num_batched_tokens
        self._blocks = blocks
        self._policy = policy
        self._budget = budget
        self._prompt_budget = prompt_budget
        self._first_tokens = first_tokens
        self._queue = WaitingQueue(policy)
        self._forecast = forecast or Forecast(blocks)
        self._admission = Admission(blocks, self._forecast)
        self._siblings = Siblings()
        self._held_outside: dict[RequestId, Request] = {}
        self._begun: list[RequestId] = []
        self._step_idx = 0

    @property
    def waiting(self) -> list[Request]:
        """Who waits: the queue in its order, then those who wait for a sibling."""
        return [*self._queue, *self._siblings.followers, *self._held_outside.values()]

    @property
    def queue(self) -> WaitingQueue:
        """Who lines up, in the policy's order; do not modify."""
        return self._queue

    @property
    def output_lengths(self) -> OutputLengths:
        """What has been learned of how long outputs get."""
        return self._forecast.lengths

    @property
    def num_seats(self) -> int:
        """How many may run at once, as far as is known: fewer than allowed when memory is short."""
        is_short = self._admission.is_memory_short and len(self._queue) > 0
        return max(1, len(self.running)) if is_short else self._max_num_seqs

    def check_fits(self, request: Request) -> str | None:
        """None, or why the request can never run, however empty the server is."""
        # The last token is never computed, only returned.
        num_tokens = request.max_total_tokens - 1
        if num_tokens > self._blocks.max_model_len:
            return (
                f"{request.num_prompt_tokens} prompt tokens and {request.params.max_tokens} of "
                f"output exceed the context of {self._blocks.max_model_len} tokens"
            )
        needed, usable = self._blocks.peak_blocks(num_tokens), self._blocks.num_usable_blocks
        for num_needed, num_usable in zip(needed, usable, strict=True):
            if num_needed > num_usable:
                return (
                    f"{request.num_prompt_tokens} prompt tokens and {request.params.max_tokens} of "
                    f"output need {num_needed} KV cache blocks of {self._blocks.block_size} "
                    f"tokens, but there are {num_usable}"
                )
        return None

    def add(self, request: Request) -> None:
        """Let `request` wait.

        Samples of one `group_id` share their prompt's blocks: those after the first wait until
        its prompt is computed. Raises ValueError for an id in use, or a request that never fits.
        """
        if request.request_id in self.requests:
            raise ValueError(f"request id {request.request_id!r} is in use")
        reason = self.check_fits(request)
        if reason is not None:
            raise ValueError(f"request {request.request_id}: {reason}")
        self.requests[request.request_id] = request
        if self._siblings.add(request):
            self._queue.push(request)

    def abort(self, request_id: RequestId) -> None:
        """Forget a request in whatever phase it is; an unknown id is ignored."""
        if request_id in self.requests:
            self.finish(request_id, FinishReason.ABORT)

    def finish(self, request_id: RequestId, reason: FinishReason) -> None:
        """End a request and give its blocks back. Raises KeyError for an unknown id."""
        request = self.requests.pop(request_id)
        if request.status is RUNNING:
            self._blocks.free(request_id)
            self.running.remove(request)
            self._admission.note_end(request)
        elif request in self._queue:
            self._queue.remove(request)
        self._held_outside.pop(request_id, None)
        heir = self._siblings.remove(request)
        if heir is not None:
            self._queue.push(heir)
        request.status = RequestStatus.FINISHED
        request.finish_reason = reason

    def go_on(self, request: Request, token_id: int) -> None:
        """A request that is held goes on with this token."""
        request.token_ids.append(token_id)
        if self._held_outside.pop(request.request_id, None) is not None:
            self._queue.push(request)

    # Planning -------------------------------------------------------------------------------

    def schedule(self) -> StepPlan | None:
        """Plan the next step; None when there is nothing to compute.

        Modifies the requests planned: their drafts are cut to what is verified, and those let in
        are running with `num_computed_tokens` as the prefix cache gives it. Every plan has to be
        handed to `update` before the next call.
        """
        if not self.requests:
            return None
        preempted: list[RequestId] = []
        self._begun.clear()
        planned = self._plan(preempted)
        if not planned and self._set_held_aside(preempted):
            planned = self._plan(preempted)
        if not planned:
            # The oldest can always run: all others are its victims or have blocks reserved.
            assert not self.running, "requests run but none can compute a token"
            return None
        self._step_idx += 1
        return StepPlan(
            self._step_idx - 1,
            tuple(planned),
            self._blocks.take_copies(),
            tuple(preempted),
            tuple(self._begun),
        )

    def _plan(self, preempted: list[RequestId]) -> list[PlannedRequest]:
        step = _Step(self._max_num_tokens, preempted)
        self._displace(step)
        num_displaced = len(preempted)
        self._plan_running(step)
        if len(preempted) == num_displaced:
            self._plan_waiting(step)
            self._share_rest(step)
        return self._planned_requests(step)

    def _set_held_aside(self, preempted: list[RequestId]) -> bool:
        """Whether any were held: their blocks and seats are free for those who could compute."""
        held = [request for request in self.running if request.is_held]
        for request in held:
            self._preempt(preempted, request)
            self._admission.note_displacement()
        return bool(held)

    def _plan_running(self, step: _Step) -> None:
        """Everybody's next token comes before anybody's chunk, so a long prompt stalls no one."""
        extend = self._blocks.extend
        behind: list[Request] = []
        num_spare = self._max_num_tokens - len(self.running)
        for request in self.running.copy():
            num_tokens = len(request.token_ids)
            start = request.num_computed_tokens
            if num_tokens - start > 1:
                behind.append(request)
                continue
            if request.status is not RUNNING or start == num_tokens:
                continue
            if not (
                extend(request.request_id, num_tokens) or self._make_room(step, request, num_tokens)
            ):
                continue
            num_drafts = 0
            if request.draft_token_ids:
                num_drafts = self._num_drafts(request, num_spare)
                num_spare -= num_drafts
            step.caught_up.append((request, num_drafts))
            step.num_tokens_left -= 1 + num_drafts
        self._plan_behind(step, behind)

    def _plan_behind(self, step: _Step, behind: list[Request]) -> None:
        for count, request in enumerate(behind, start=1):
            if request.status is not RUNNING:
                continue
            if not self._has_room(step, request, request.num_computed_tokens):
                return
            is_last = count == len(behind) and not self._queue
            if not self._plan_chunk(step, request, is_last):
                return

    def _num_drafts(self, request: Request, num_spare: int) -> int:
        """As many as leave every running request a token, and as can become output."""
        num_wanted = request.max_total_tokens - request.num_tokens - 1
        return max(0, min(len(request.draft_token_ids), num_spare, num_wanted))

    def _plan_chunk(self, step: _Step, request: Request, is_last: bool) -> bool:
        """Plan a chunk of a request that is behind; False when the step has no room for more.

        It leaves some room to those after it, unless it `is_last`.
        """
        start = request.num_computed_tokens
        num_tokens, share_of_time = request.num_tokens - start, 1.0
        if not is_last:
            # Of its tokens and of its time: deep in a long prompt, few tokens take all of that.
            num_tokens = min(num_tokens, self._policy.max_chunk(step.num_tokens_left))
            share_of_time = SHARED
        num_tokens = self._max_chunk(step, start, num_tokens, share_of_time)
        if num_tokens > 0 and self._make_room(step, request, start + num_tokens):
            step.chunks.append((request, num_tokens))
            step.num_tokens_left -= num_tokens
        return step.num_tokens_left > 0

    def _share_rest(self, step: _Step) -> None:
        """Give out what is left of the step, once all are in who come in."""
        ending = _short_endings(step.chunks) if self._first_tokens is not None else []
        if self._first_tokens is None or not 0 < len(ending) < len(step.chunks):
            self._top_up(step)
            return
        others = [chunk for chunk in step.chunks if chunk not in ending]
        step.chunks = ending
        step.num_tokens_left += sum(num_tokens for _, num_tokens in others)
        budget = self._first_tokens.beside(self._shape(step))
        for request, num_planned in others:
            start = request.num_computed_tokens
            num_wanted = self._max_chunk(step, start, num_planned)
            if num_wanted <= 0:
                return
            num_tokens = budget.max_chunk(self._shape(step), start, num_wanted)
            step.chunks.append((request, num_tokens))
            step.num_tokens_left -= num_tokens
            if num_tokens < num_wanted:
                return

    def _top_up(self, step: _Step) -> None:
        """Tokens that others could have used, but did not, go to the chunks that were cut."""
        for idx, (request, num_tokens) in enumerate(step.chunks):
            start = request.num_computed_tokens + num_tokens
            if start == request.num_tokens or not self._has_room(step, request, start):
                continue
            num_more = self._max_chunk(step, start, request.num_tokens - start)
            if num_more > 0 and self._blocks.extend(request.request_id, start + num_more):
                step.chunks[idx] = (request, num_tokens + num_more)
                step.num_tokens_left -= num_more

    def _budget_of(self, step: _Step) -> StepBudget | None:
        # Where nobody waits for his next token, somebody may still come for his first.
        return self._budget if step.caught_up else self._prompt_budget

    def _has_room(self, step: _Step, request: Request, start: int) -> bool:
        """Whether the step has time for another prompt; the first is computed in any case."""
        budget = self._budget_of(step)
        if budget is None or not step.chunks:
            return True
        return budget.has_room(self._shape(step), start, request.num_tokens - start)

    def _max_chunk(
        self, step: _Step, start: int, num_wanted: int, share_of_time: float = 1.0
    ) -> int:
        num_tokens = min(num_wanted, step.num_tokens_left)
        budget = self._budget_of(step)
        if budget is None or num_tokens <= 0:
            return num_tokens
        return budget.max_chunk(self._shape(step), start, num_tokens, share_of_time)

    def _plan_waiting(self, step: _Step) -> None:
        while step.num_tokens_left > 0 and len(self.running) < self._max_num_seqs:
            request = self._queue.head()
            if request is None:
                return
            quote = self._admission.quote(request, self.running, self._step_idx)
            if quote is None:
                return
            if not self._has_room(step, request, quote.num_shared_tokens):
                return
            self._admit(request, quote)
            if not self._plan_chunk(step, request, is_last=not self._queue):
                return

    def _admit(self, request: Request, quote: AdmissionQuote) -> None:
        self._queue.remove(request)
        self._blocks.admit(request, quote)
        request.status = RUNNING
        self.running.append(request)
        if request.has_begun:
            return
        self._begun.append(request.request_id)
        if quote.parent_id is None:
            request.num_cached_tokens = quote.num_shared_tokens
            self.num_cached_tokens += quote.num_shared_tokens

    def _planned_requests(self, step: _Step) -> list[PlannedRequest]:
        """The plan's entries, without those preempted since they were planned."""
        planned = []
        for request, num_wanted in step.caught_up:
            if request.status is RUNNING:
                fits = self._fit_drafts(request, num_wanted) if request.draft_token_ids else 0
                start = request.num_computed_tokens
                planned.append(PlannedRequest(request.request_id, start, 1 + fits, fits, 1 + fits))
        for request, num_tokens in step.chunks:
            if request.status is RUNNING:
                planned.append(self._planned_chunk(request, num_tokens))
        return planned

    def _planned_chunk(self, request: Request, num_tokens: int) -> PlannedRequest:
        start = request.num_computed_tokens
        if request.scores_prompt:
            num_logit_rows = num_tokens
        else:
            num_logit_rows = int(start + num_tokens == request.num_tokens)
        return PlannedRequest(request.request_id, start, num_tokens, 0, num_logit_rows)

    def _fit_drafts(self, request: Request, num_drafts: int) -> int:
        """Cut the request's drafts to `num_drafts` and to the slots that cost nobody anything."""
        num_tokens = request.num_tokens
        end = self._blocks.extend_for_drafts(request.request_id, num_tokens + num_drafts)
        del request.draft_token_ids[end - num_tokens :]
        return end - num_tokens

    def _shape(self, step: _Step) -> StepShape:
        shape = EMPTY_STEP
        for request, num_drafts in step.caught_up:
            num_tokens = 1 + num_drafts
            shape = shape.with_chunk(request.num_computed_tokens, num_tokens, num_tokens)
        for request, num_tokens in step.chunks:
            shape = shape.with_chunk(request.num_computed_tokens, num_tokens, 1)
        return shape

    # Preemption -----------------------------------------------------------------------------

    def _displace(self, step: _Step) -> None:
        """Let the head of the queue take the place of running requests of less urgent levels.

        Only if they can make room enough, and each only if it has got a token since it came in.
        """
        head = self._queue.head()
        if head is None or self._is_least_urgent(head):
            return
        victims = displaced_by(head, self.running, self._policy, self._blocks)
        if not victims or not self._can_make_room(head, victims):
            return
        for victim in victims:
            if self._has_room_for(head):
                return
            self._preempt(step.preempted, victim)
            self._admission.note_displacement()

    def _is_least_urgent(self, request: Request) -> bool:
        level = self._policy.level(request)
        return all(self._policy.level(other) <= level for other in self.running)

    def _has_room_for(self, request: Request) -> bool:
        if len(self.running) >= self._max_num_seqs:
            return False
        return self._admission.quote(request, self.running, self._step_idx) is not None

    def _can_make_room(self, request: Request, victims: Sequence[Request]) -> bool:
        num_freed = sum(self._blocks.freed_by_preemption(v.request_id)[0] for v in victims)
        num_needed = sum(self._blocks.quote(request).num_needed)
        return num_needed <= sum(self._blocks.num_unreserved) + num_freed

    def _make_room(self, step: _Step, request: Request, end: int) -> bool:
        """Preempt others until `request` can grow; False when it has to sit this step out."""
        while not self._blocks.extend(request.request_id, end):
            victim = choose_victim(request, self.running, self._policy, self._blocks)
            if victim is None:
                return False
            self._preempt(step.preempted, victim)
            if victim is request:
                return False
        return True

    def _preempt(self, preempted: list[RequestId], victim: Request) -> None:
        """Take the victim's blocks and let it wait in its old place."""
        self._blocks.free(victim.request_id)
        self.running.remove(victim)
        is_held = victim.is_held
        victim.status = RequestStatus.WAITING
        victim.num_preemptions += 1
        victim.num_tokens_at_preemption = victim.num_tokens
        victim.num_computed_at_preemption = max(
            victim.num_computed_at_preemption, victim.num_computed_tokens
        )
        victim.num_computed_tokens = 0
        victim.draft_token_ids.clear()
        if is_held:
            self._held_outside[victim.request_id] = victim
        else:
            self._queue.push(victim)
        self.num_preemptions += 1
        preempted.append(victim.request_id)

    # Speculation ----------------------------------------------------------------------------

    def prompts_ahead(self) -> StepShape:
        """What the next step will compute, about, of the running requests that are behind."""
        shape = EMPTY_STEP
        num_left = self._max_num_tokens - len(self.running)
        for request in self.running:
            num_tokens = min(len(request.token_ids) - request.num_computed_tokens, num_left)
            if num_tokens > 1:
                shape = shape.with_chunk(request.num_computed_tokens, num_tokens, 1)
                num_left -= num_tokens
        return shape

    # After the step -------------------------------------------------------------------------

    def update(self, plan: StepPlan, accepted: Mapping[RequestId, Sequence[int]]) -> None:
        """Take in what a step produced.

        `accepted` holds, for each request whose step reached the end of its tokens, the drafts
        that were right and one token more (fewer where the output ends early). Requests that have
        ended since they were planned are skipped. Raises ValueError when tokens are missing;
        hypotheses get none.
        """
        requests = self.requests
        for planned in plan.requests:
            request = requests.get(planned.request_id)
            if request is not None:
                self._advance(request, planned, accepted.get(planned.request_id, ()))

    def _advance(self, request: Request, planned: PlannedRequest, tokens: Sequence[int]) -> None:
        start = planned.start
        end = start + planned.num_tokens - planned.num_drafts
        if end == len(request.token_ids):
            if tokens:
                end += len(tokens) - 1
                request.token_ids.extend(tokens)
            elif request.params.beam is None:
                raise ValueError(f"request {request.request_id}: its step produced no token")
        request.num_computed_tokens = end
        self.num_computed_tokens += planned.num_tokens
        if start < request.num_computed_at_preemption:
            self.num_recomputed_tokens += min(end, request.num_computed_at_preemption) - start
        if end // self._blocks.block_size > start // self._blocks.block_size:
            self._blocks.publish(request)
        if planned.num_drafts:
            request.draft_token_ids.clear()
            self._blocks.trim(request.request_id, len(request.token_ids))
        if self._siblings and end >= request.num_prompt_tokens:
            for sibling in self._siblings.release(request):
                self._queue.push(sibling)


def _short_endings(chunks: Sequence[tuple[Request, int]]) -> list[tuple[Request, int]]:
    """The chunks that end a prompt, without those that would more than double their time."""
    ending = [
        (request, num_tokens)
        for request, num_tokens in chunks
        if request.num_computed_tokens + num_tokens == request.num_tokens
    ]
    ending.sort(key=itemgetter(1))
    total = 0
    for idx, (_, num_tokens) in enumerate(ending):
        if idx and num_tokens > total:
            return ending[:idx]
        total += num_tokens
    return ending
