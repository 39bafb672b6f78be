"""The model behind the end points: its engine, its text half, its defaults, its name.

Rendering and tokenising run in threads, because a long prompt would hold up every stream that
shares the event loop; long ones have a lane of their own, so that short ones pass them.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import msgspec
from hasten.api.client import DeadlineExceededError
from hasten.api.generation import generate_text, pooled
from hasten.api.http.errors import ApiError, naming_parameters, unsupported
from hasten.api.security.caller import caller
from hasten.api.structured.compose import behind_thought
from hasten.api.text.answer_plan import PLAIN
from hasten.core.messages import AddRequest

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from hasten.api.client import EngineClient
    from hasten.api.http.metrics import Metrics
    from hasten.api.http.requests import GenerationRequest
    from hasten.api.params import SamplingParams
    from hasten.api.security.caller import Caller
    from hasten.api.text.answer_plan import AnswerPlan, AnswerStyle
    from hasten.api.text.sample_text import SampleDelta
    from hasten.api.text_model import TextModel
    from hasten.core.options import EngineOptions
    from hasten.core.params import GenerationParams

_T = TypeVar("_T")

MAX_SHOWN_LEN = 100
"""Characters of a name that a client gave wrongly, as it is told."""
NUM_TEXT_THREADS = 2
NUM_LONG_TEXT_THREADS = 1
LONG_TEXT_BYTES = 1 << 16
"""Of a request's body: from here on it takes the lane of long texts."""
LONG_TEXT_NICENESS = 5
TEXT_LIMIT_S = 20.0
"""How long work on text may take, waiting for a thread included."""


@dataclass(frozen=True, slots=True)
class Work:
    """What a request asks of the engine: its parameters in both forms, and its prompts."""

    params: SamplingParams
    resolved: GenerationParams
    prompts: list[list[int]]
    plan: AnswerPlan = PLAIN

    @property
    def num_prompt_tokens(self) -> int:
        return sum(map(len, self.prompts))

    @property
    def lists_logprobs(self) -> bool:
        return self.resolved.logprobs is not None or self.resolved.prompt_logprobs is not None


def _yield_to_others() -> None:
    """This thread takes a core after the engine and the event loop, where the system knows how."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LONG_TEXT_NICENESS)


class ServedModel:
    """An engine that is ready, and what the API needs around it."""

    def __init__(
        self,
        client: EngineClient,
        text: TextModel,
        options: EngineOptions,
        metrics: Metrics,
        style: AnswerStyle,
    ) -> None:
        self.client = client
        self.style = style
        self.text = text
        self.tokenizer = text.tokenizer
        self._metrics = metrics
        self.info = client.info
        self.name = options.model.served_model_name or client.info.model_name
        self.created = int(time.time())
        self._isolates_clients = options.cache.isolate_cache_by_key
        self._has_priorities = options.scheduler.scheduling_policy == "priority"
        # Or the tokeniser takes every core for one text, in threads of normal priority.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        self._threads = ThreadPoolExecutor(NUM_TEXT_THREADS, thread_name_prefix="text")
        self._long_threads = ThreadPoolExecutor(
            NUM_LONG_TEXT_THREADS, thread_name_prefix="long-text", initializer=_yield_to_others
        )

    def close(self) -> None:
        for threads in (self._threads, self._long_threads):
            threads.shutdown(wait=False, cancel_futures=True)

    def check_name(self, name: str | None) -> None:
        """Raises ApiError 404 when a client names another model; it need not name any."""
        if name is not None and name != self.name:
            raise ApiError(
                404,
                f"the model {name[:MAX_SHOWN_LEN]!r} does not exist; this server has {self.name!r}",
                param="model",
                code="model_not_found",
            )

    def check(self, request: GenerationRequest) -> None:
        """Refuse what this server does not serve. Raises ApiError."""
        self.check_name(request.model)
        if request.priority and not self._has_priorities:
            raise unsupported(
                "priority",
                "priority: this server takes requests in order (--scheduling-policy fcfs)",
            )
        request.check()

    async def in_thread(self, work: Callable[[], _T], num_bytes: int) -> _T:
        """The result of `work` on a text of about `num_bytes`, off the event loop.

        Raises ApiError 503 when it takes too long, and what `work` raises.
        """
        threads = self._long_threads if num_bytes > LONG_TEXT_BYTES else self._threads
        working = asyncio.get_running_loop().run_in_executor(threads, work)
        try:
            return await asyncio.wait_for(working, TEXT_LIMIT_S)
        except TimeoutError as error:
            raise ApiError(
                503, f"preparing text took more than {TEXT_LIMIT_S:g} s", code="too_slow"
            ) from error

    async def write(self, work: Work, write: Callable[[], _T]) -> _T:
        """What `write` makes of results: off the event loop where they may be long."""
        return await self.in_thread(write, LONG_TEXT_BYTES + 1) if work.lists_logprobs else write()

    async def prepare(self, request: GenerationRequest, num_bytes: int) -> Work:
        """Check, resolve and tokenise a request whose body had `num_bytes`, in this order.

        Raises ApiError or ChatTemplateError.
        """
        self.check(request)
        params = request.sampling_params(self.info.generation_defaults)

        def work() -> Work:
            grammar = request.grammar(self.style)
            prompts = request.token_ids(self.text)
            plan = request.answer_plan(self.style, self.text.end_of(prompts[0]))
            if grammar and plan.reasons:
                grammar = behind_thought(grammar, begun=plan.is_begun)
            structured = msgspec.structs.replace(params, grammar=grammar)
            return Work(structured, self.text.resolve(structured), prompts, plan)

        with naming_parameters(request.param_name):
            return await self.in_thread(work, num_bytes)

    def generate(
        self, request_id: str, work: Work, prompt_idx: int, request: GenerationRequest
    ) -> AsyncGenerator[SampleDelta]:
        """The text of one prompt. Raises InvalidParameterError before anything is sent."""
        who = caller()
        add = self._add_request(request_id, work, prompt_idx, request)
        rules = work.params.stop_rules(self.info.eos_token_ids)
        vocabulary = self.text.vocabulary(work.params, work.plan.markers)
        return self._metrics.watch(generate_text(self.client, vocabulary, add, rules), who, add)

    async def embed(
        self,
        request_id: str,
        work: Work,
        prompt_idx: int,
        request: GenerationRequest,
        pooling: str,
    ) -> list[float]:
        """The embedding of one prompt. Raises what `EngineClient.generate` raises."""
        add = self._add_request(request_id, work, prompt_idx, request, pooling)
        return await pooled(self.client, add)

    def _add_request(
        self,
        request_id: str,
        work: Work,
        prompt_idx: int,
        request: GenerationRequest,
        pooling: str = "",
    ) -> AddRequest:
        """What to send to the engine."""
        prompt, resolved, who = work.prompts[prompt_idx], work.resolved, caller()
        return AddRequest(
            request_id=request_id,
            prompt_token_ids=prompt,
            params=self.text.fit(resolved, len(prompt))
            if work.params.max_tokens is None
            else resolved,
            priority=request.priority,
            cache_salt=self._salt(request.cache_salt or "", who.key.name),
            client=who.key.name,
            deadline_s=self._time_left(request, who),
            waited_s=time.monotonic() - who.begin_s,
            pooling=pooling,
        )

    def _salt(self, wanted: str, client: str) -> str:
        """What the prompt's blocks are told apart by: with isolation, by who asks too."""
        return f"{client}\0{wanted}" if self._isolates_clients else wanted

    def _time_left(self, request: GenerationRequest, who: Caller) -> float | None:
        """Of the request's deadline, which counts from when the request came."""
        if request.deadline_ms is None:
            return None
        left_s = request.deadline_ms / 1000 - (time.monotonic() - who.begin_s)
        if left_s <= 0:
            raise DeadlineExceededError("the deadline passed while the prompt was prepared")
        return left_s
