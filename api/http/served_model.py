"""The model behind the end points: its engine, its text half, its defaults, its name.

Rendering and tokenising run in a small thread pool, because a long prompt would hold up every
stream that shares the event loop.
"""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from hasten.api.generation import generate_text
from hasten.api.http.errors import ApiError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping, Sequence

    from hasten.api.client import EngineClient
    from hasten.api.http.metrics import Metrics
    from hasten.api.http.requests import GenerationRequest
    from hasten.api.params import SamplingParams
    from hasten.api.text.sample_text import SampleDelta
    from hasten.api.text_model import TextModel
    from hasten.core.options import EngineOptions

_T = TypeVar("_T")

NUM_TEXT_THREADS = 2


class ServedModel:
    """An engine that is ready, and what the API needs around it."""

    def __init__(
        self,
        client: EngineClient,
        text: TextModel,
        options: EngineOptions,
        metrics: Metrics,
    ) -> None:
        self.client = client
        self.text = text
        self.tokenizer = text.tokenizer
        self._metrics = metrics
        self.info = client.info
        self.name = options.model.served_model_name or client.info.model_name
        self.created = int(time.time())
        self._has_priorities = options.scheduler.scheduling_policy == "priority"
        self._threads = ThreadPoolExecutor(NUM_TEXT_THREADS, thread_name_prefix="text")

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def check_name(self, name: str | None) -> None:
        """Raises ApiError 404 when a client names another model; it need not name any."""
        if name is not None and name != self.name:
            raise ApiError(
                404,
                f"the model {name!r} does not exist; this server has {self.name!r}",
                param="model",
                code="model_not_found",
            )

    def check(self, request: GenerationRequest) -> None:
        """Refuse what this server does not serve. Raises ApiError."""
        self.check_name(request.model)
        if request.priority and not self._has_priorities:
            raise ApiError(
                400,
                "priority: this server takes requests in order (--scheduling-policy fcfs)",
                param="priority",
                code="unsupported_parameter",
            )
        request.check()

    async def chat_prompt(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """The token ids of a conversation. Raises ChatTemplateError."""
        return await self._in_thread(partial(self.text.chat_prompt, messages))

    async def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """The token ids of a text."""
        return await self._in_thread(
            partial(self.tokenizer.encode, text, add_special_tokens=add_special_tokens)
        )

    def check_token_ids(self, token_ids: Sequence[int], param: str = "prompt") -> None:
        """Raises ApiError unless there are ids and all are in the vocabulary."""
        if not token_ids:
            raise ApiError(400, f"{param} must not be empty", param=param)
        for token_id in (min(token_ids), max(token_ids)):
            if not 0 <= token_id < self.info.vocab_size:
                raise ApiError(
                    400,
                    f"{param}: token id {token_id} is outside the vocabulary of "
                    f"{self.info.vocab_size}",
                    param=param,
                    code="invalid_value",
                )

    def generate(
        self,
        request_id: str,
        prompt: list[int],
        params: SamplingParams,
        request: GenerationRequest,
        seed: int,
    ) -> AsyncGenerator[SampleDelta]:
        """The text of one prompt. Raises InvalidParameterError before anything is sent."""
        add = self.text.request(
            request_id,
            prompt,
            params,
            seed=seed,
            priority=request.priority,
            cache_salt=request.cache_salt or "",
        )
        rules = params.stop_rules(self.info.eos_token_ids)
        return self._metrics.watch(generate_text(self.client, self.tokenizer, add, rules))

    async def _in_thread(self, work: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)
