"""`POST /v1/completions`.

Choices are numbered prompt by prompt: choice = prompt index * n + sample index.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING

import msgspec
from hasten.api.http.answers import (
    CompletionChoice,
    CompletionLogprobs,
    Envelope,
    TextCompletion,
    UsageCounter,
    completion_logprobs,
    prompt_logprobs,
)
from hasten.api.http.body import decode_body, read_body
from hasten.api.http.errors import naming_parameters
from hasten.api.http.requests import CompletionRequest
from hasten.api.http.service import service_of
from hasten.api.http.streaming import DONE, start_stream, while_connected
from hasten.api.text.detokenizer import Detokenizer, text_of
from starlette.responses import Response

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence

    from hasten.api.http.answers import PromptLogprobs
    from hasten.api.http.served_model import ServedModel, Work
    from hasten.api.text.sample_text import SampleDelta
    from hasten.core.messages import PositionLogprobs
    from starlette.requests import Request


@dataclass(slots=True)
class _Job:
    """One request, checked and tokenised.

    `prompt_scores`, by prompt, come with the first delta of each prompt's first sample; every
    sample that echoes the prompt shows them.
    """

    model: ServedModel
    request: CompletionRequest
    work: Work
    request_id: str
    prompt_scores: dict[int, Sequence[PositionLogprobs | None]] = field(default_factory=dict)

    def deltas(self, prompt_idx: int) -> AsyncGenerator[SampleDelta]:
        request_id = f"{self.request_id}-{prompt_idx}"
        deltas = self.model.generate(request_id, self.work, prompt_idx, self.request)
        return _without_output(deltas) if self.request.generates_nothing else deltas

    def envelope(self) -> Envelope:
        return Envelope(
            id=self.request_id,
            object="text_completion",
            created=int(time.time()),
            model=self.model.name,
            system_fingerprint=self.model.info.config_hash,
            seed=self.work.resolved.seed,
        )

    def usage_counter(self) -> UsageCounter:
        return UsageCounter(
            self.work.num_prompt_tokens, summarises_drafts=self.request.summarises_drafts
        )


async def create_completion(request: Request) -> Response:
    """Continue one or many prompts, streamed or whole."""
    model = service_of(request).require_model()
    body = await read_body(request)
    completion = decode_body(body, CompletionRequest)
    work = await while_connected(request.receive, model.prepare(completion, len(body)))
    job = _Job(model, completion, work, request_id=f"cmpl-{uuid.uuid4().hex}")
    with naming_parameters(completion.param_name):
        if completion.stream:
            return await start_stream(request.receive, _events(job))
        answer = await while_connected(request.receive, _collect(job))
    return Response(answer, media_type="application/json")


async def _without_output(deltas: AsyncGenerator[SampleDelta]) -> AsyncGenerator[SampleDelta]:
    """For `max_tokens` 0: the engine scores a prompt on the way to a token, which nobody wants."""
    async with aclosing(deltas):
        async for delta in deltas:
            yield replace(
                delta, text="", tokens=(), num_tokens=0, finish_reason="length", stop_reason=None
            )


async def _events(job: _Job) -> AsyncGenerator[bytes]:
    usage = job.usage_counter()
    envelope = job.envelope()
    encode = envelope.chunk_encoder(include_usage=job.request.include_usage)
    writers: dict[tuple[int, int], _ChoiceWriter] = {}
    async with aclosing(_merged(job)) as deltas:
        async for prompt_idx, delta in deltas:
            usage.add(delta, prompt_idx)
            key = (prompt_idx, delta.sample_idx)
            writer = writers.get(key) or writers.setdefault(key, _ChoiceWriter(job, prompt_idx))
            choice = await writer.streamed(delta)
            if choice.text or not delta.is_empty:
                yield encode(choice)
    if job.request.include_usage:
        yield envelope.usage_chunk(usage.usage())
    yield DONE


async def _collect(job: _Job) -> bytes:
    collected: dict[tuple[int, int], list[SampleDelta]] = {}
    async with aclosing(_merged(job)) as deltas:
        async for prompt_idx, delta in deltas:
            collected.setdefault((prompt_idx, delta.sample_idx), []).append(delta)
    return await job.model.write(job.work, partial(_answer, job, collected))


def _answer(job: _Job, collected: Mapping[tuple[int, int], Sequence[SampleDelta]]) -> bytes:
    usage = job.usage_counter()
    choices = []
    for (prompt_idx, _), deltas in sorted(collected.items(), key=itemgetter(0)):
        for delta in deltas:
            usage.add(delta, prompt_idx)
        choices.append(_ChoiceWriter(job, prompt_idx).choice(deltas))
    return job.envelope().answer(TextCompletion, choices=choices, usage=usage.usage())


async def _merged(job: _Job) -> AsyncGenerator[tuple[int, SampleDelta]]:
    """The deltas of all prompts as they come, each with the index of its prompt."""
    queue: asyncio.Queue[tuple[int, SampleDelta | None]] = asyncio.Queue()

    async def feed(prompt_idx: int) -> None:
        async with aclosing(job.deltas(prompt_idx)) as deltas:
            async for delta in deltas:
                if delta.prompt_logprobs is not None:
                    job.prompt_scores[prompt_idx] = delta.prompt_logprobs
                queue.put_nowait((prompt_idx, delta))

    tasks = [asyncio.create_task(feed(i)) for i in range(len(job.work.prompts))]
    everything = asyncio.gather(*tasks)
    everything.add_done_callback(lambda _: queue.put_nowait((-1, None)))
    try:
        while True:
            prompt_idx, delta = await queue.get()
            if delta is None:
                break
            yield prompt_idx, delta
        await everything
    finally:
        for task in tasks:
            task.cancel()
        # `everything` too: the cancellation that it has got from them is to be taken from it.
        await asyncio.gather(everything, *tasks, return_exceptions=True)


class _ChoiceWriter:
    """Makes the choices of one sample; the first also echoes the prompt when asked to."""

    def __init__(self, job: _Job, prompt_idx: int) -> None:
        self._job = job
        self._prompt_idx = prompt_idx
        self._echo = job.request.echo
        self._prompt = job.work.prompts[prompt_idx]
        self._vocabulary = job.model.text.vocabulary(job.work.params)
        self._prompt_text = text_of(self._vocabulary, self._prompt) if self._echo else ""

    async def streamed(self, delta: SampleDelta) -> CompletionChoice:
        """The choice of one delta; the one that scores a whole prompt is made off the loop."""
        if not self._echo:
            return self.choice([delta])
        return await self._job.model.write(self._job.work, partial(self.choice, [delta]))

    def choice(self, deltas: Sequence[SampleDelta]) -> CompletionChoice:
        """One choice from some deltas that follow one another."""
        last = deltas[-1]
        text = "".join(delta.text for delta in deltas)
        choice = CompletionChoice(
            index=self._prompt_idx * self._job.work.params.n + last.sample_idx,
            text=self._prompt_text + text if self._echo else text,
            logprobs=self._logprobs(deltas),
            finish_reason=last.finish_reason,
            stop_reason=last.stop_reason,
            prompt_logprobs=self._prompt_logprobs(),
        )
        self._echo = False
        return choice

    def _logprobs(self, deltas: Sequence[SampleDelta]) -> CompletionLogprobs | None:
        num_top = self._job.request.logprobs
        if num_top is None:
            return None
        begin = len(self._prompt_text)
        generated = [
            (token.token_id, begin + token.text_offset, token.logprobs)
            for delta in deltas
            for token in delta.tokens
        ]
        echoed = list(self._echoed()) if self._echo else []
        return completion_logprobs(self._job.model.tokenizer, echoed + generated, num_top)

    def _prompt_logprobs(self) -> PromptLogprobs | msgspec.UnsetType:
        num_top = self._job.request.prompt_logprobs
        if num_top is None:
            return msgspec.UNSET
        scores = self._job.prompt_scores[self._prompt_idx]
        return prompt_logprobs(self._job.model.tokenizer, self._prompt, scores, num_top)

    def _echoed(self) -> Iterator[tuple[int, int, PositionLogprobs | None]]:
        """The prompt's tokens with their offsets in its text."""
        logprobs = self._job.prompt_scores[self._prompt_idx]
        detokenizer = Detokenizer(self._vocabulary)
        offset = 0
        for token_id, position in zip(self._prompt, logprobs, strict=True):
            yield token_id, offset, position
            offset += len(detokenizer.push(token_id))
