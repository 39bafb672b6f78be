"""`POST /v1/chat/completions`."""

from __future__ import annotations

import time
import uuid
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

import msgspec
from hasten.api.http.answers import (
    ChatChoice,
    ChatChunkChoice,
    ChatCompletion,
    Envelope,
    UsageCounter,
    chat_logprobs,
    prompt_logprobs,
)
from hasten.api.http.body import decode_body, read_body
from hasten.api.http.chat_answer import AnswerReader, DeltaWriter, whole_message
from hasten.api.http.errors import naming_parameters
from hasten.api.http.requests import ChatRequest
from hasten.api.http.service import service_of
from hasten.api.http.streaming import DONE, start_stream, while_connected
from starlette.responses import Response

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence

    from hasten.api.http.answers import ChatLogprobs, PromptLogprobs
    from hasten.api.http.served_model import ServedModel, Work
    from hasten.api.text.sample_text import SampleDelta, TokenRecord
    from starlette.requests import Request


@dataclass(slots=True)
class _Job:
    """One request, checked and tokenised. Errors about the prompt speak of `messages`."""

    model: ServedModel
    request: ChatRequest
    work: Work
    request_id: str

    def deltas(self) -> AsyncGenerator[SampleDelta]:
        return self.model.generate(self.request_id, self.work, 0, self.request)

    def envelope(self, kind: str) -> Envelope:
        return Envelope(
            id=self.request_id,
            object=kind,
            created=int(time.time()),
            model=self.model.name,
            system_fingerprint=self.model.info.config_hash,
            seed=self.work.resolved.seed,
        )

    def usage_counter(self) -> UsageCounter:
        return UsageCounter(
            self.work.num_prompt_tokens, summarises_drafts=self.request.summarises_drafts
        )

    def logprobs(self, tokens: Sequence[TokenRecord]) -> ChatLogprobs | None:
        num_top = self.work.params.logprobs
        return None if num_top is None else chat_logprobs(self.model.tokenizer, tokens, num_top)


async def create_chat_completion(request: Request) -> Response:
    """Answer a conversation, streamed or whole."""
    model = service_of(request).require_model()
    body = await read_body(request)
    chat = decode_body(body, ChatRequest)
    work = await while_connected(request.receive, model.prepare(chat, len(body)))
    job = _Job(model, chat, work, request_id=f"chatcmpl-{uuid.uuid4().hex}")
    with naming_parameters(chat.param_name):
        if chat.stream:
            return await start_stream(request.receive, _events(job))
        answer = await while_connected(request.receive, _collect(job))
    return Response(answer, media_type="application/json")


async def _events(job: _Job) -> AsyncGenerator[bytes]:
    """The stream of a chat answer: one event for each step that lets a sample show something."""
    usage = job.usage_counter()
    envelope = job.envelope("chat.completion.chunk")
    encode = envelope.chunk_encoder(include_usage=job.request.include_usage)
    writers: dict[int, _ChunkWriter] = {}
    async with aclosing(job.deltas()) as deltas:
        async for delta in deltas:
            usage.add(delta)
            writer = writers.get(delta.sample_idx)
            if writer is None:
                writer = writers[delta.sample_idx] = _ChunkWriter(job)
            choice = writer.write(delta)
            if choice is not None:
                yield encode(choice)
    if job.request.include_usage:
        yield envelope.usage_chunk(usage.usage())
    yield DONE


class _ChunkWriter:
    """Makes the chunks of one sample."""

    def __init__(self, job: _Job) -> None:
        self._job = job
        self._reader = AnswerReader(job.work.plan)
        self._deltas = DeltaWriter()

    def write(self, delta: SampleDelta) -> ChatChunkChoice | None:
        """The chunk of one delta; None where a client would see nothing new."""
        answer = self._reader.read(delta)
        logprobs = self._job.logprobs(delta.tokens)
        if not answer.events and not (logprobs and delta.tokens) and answer.finish_reason is None:
            return None
        return ChatChunkChoice(
            index=delta.sample_idx,
            delta=self._deltas.write(answer),
            logprobs=logprobs,
            finish_reason=answer.finish_reason,
            stop_reason=delta.stop_reason,
        )


async def _collect(job: _Job) -> bytes:
    """The whole answer: the deltas of each sample, joined."""
    by_sample: dict[int, list[SampleDelta]] = {}
    async with aclosing(job.deltas()) as deltas:
        async for delta in deltas:
            by_sample.setdefault(delta.sample_idx, []).append(delta)
    return await job.model.write(job.work, partial(_answer, job, by_sample))


def _answer(job: _Job, by_sample: Mapping[int, list[SampleDelta]]) -> bytes:
    usage = job.usage_counter()
    for delta in chain.from_iterable(by_sample.values()):
        usage.add(delta)
    choices = [_choice(job, by_sample[i]) for i in sorted(by_sample)]
    return job.envelope("chat.completion").answer(
        ChatCompletion,
        choices=choices,
        usage=usage.usage(),
        prompt_logprobs=_prompt_logprobs(job, by_sample[0][0]),
    )


def _prompt_logprobs(job: _Job, first: SampleDelta) -> PromptLogprobs | msgspec.UnsetType:
    num_top = job.request.prompt_logprobs
    if num_top is None or first.prompt_logprobs is None:
        return msgspec.UNSET
    return prompt_logprobs(job.model.tokenizer, job.work.prompts[0], first.prompt_logprobs, num_top)


def _choice(job: _Job, deltas: list[SampleDelta]) -> ChatChoice:
    last = deltas[-1]
    reader = AnswerReader(job.work.plan)
    answers = [reader.read(delta) for delta in deltas]
    return ChatChoice(
        index=last.sample_idx,
        message=whole_message(answers),
        logprobs=job.logprobs([token for delta in deltas for token in delta.tokens]),
        finish_reason=answers[-1].finish_reason,
        stop_reason=last.stop_reason,
    )
