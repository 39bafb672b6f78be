"""`/v1/responses`: OpenAI's Responses API, over the same chats as `/v1/chat/completions`.

A stored response can be asked for by its id, deleted, and gone on from by `previous_response_id`.
Exercised by `pytest tests/unit/api/test_responses.py`.
"""

from __future__ import annotations

import time
import uuid
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import msgspec
from hasten.api.http.answers import UsageCounter, chat_logprobs
from hasten.api.http.body import decode_body, read_body, renaming
from hasten.api.http.chat_answer import AnswerReader
from hasten.api.http.errors import naming_parameters
from hasten.api.http.named_events import ending_with_error
from hasten.api.http.responses_answer import ResponseWriter, status_of
from hasten.api.http.responses_objects import DeletedResponse
from hasten.api.http.responses_request import ResponsesRequest
from hasten.api.http.responses_store import StoredResponse
from hasten.api.http.service import service_of
from hasten.api.http.streaming import start_stream, while_connected
from starlette.responses import Response

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from hasten.api.http.answers import ChatToken
    from hasten.api.http.messages import ChatMessage
    from hasten.api.http.requests import ChatRequest
    from hasten.api.http.responses_store import ResponseStore
    from hasten.api.http.served_model import ServedModel, Work
    from hasten.api.text.sample_text import SampleDelta
    from starlette.requests import Request


@dataclass(slots=True)
class _Job:
    """One request, checked and tokenised.

    `history` is what a next response goes on from; `body` is the whole answer, once it is there.
    """

    model: ServedModel
    store: ResponseStore
    request: ResponsesRequest
    chat: ChatRequest
    work: Work
    history: tuple[ChatMessage, ...]
    writer: ResponseWriter
    body: bytes = b""

    def deltas(self) -> AsyncGenerator[SampleDelta]:
        return self.model.generate(self.writer.response_id, self.work, 0, self.chat)

    def logprobs(self, delta: SampleDelta) -> list[ChatToken]:
        num_top = self.work.params.logprobs
        if num_top is None:
            return []
        return chat_logprobs(self.model.tokenizer, delta.tokens, num_top).content

    def finish(self, body: bytes) -> None:
        """Keep the whole answer, where the client wants that."""
        self.body = body
        if self.request.store:
            stored = StoredResponse(body, (*self.history, self.writer.blocks.message()))
            self.store.put(self.writer.response_id, stored)


async def create_response(request: Request) -> Response:
    """Answer an input, streamed or whole."""
    body = await read_body(request)
    job = await while_connected(request.receive, _prepare(request, body))
    with naming_parameters(lambda field: job.request.param_name(job.chat.param_name(field))):
        if job.request.stream:
            events = ending_with_error(_events(job), job.writer.error)
            return await start_stream(request.receive, events)
        answer = await while_connected(request.receive, _collect(job))
    return Response(answer, media_type="application/json")


async def show_response(request: Request) -> Response:
    """A response that is remembered."""
    store = _store_of(request)
    return Response(store.get(request.path_params["id"]).body, media_type="application/json")


async def delete_response(request: Request) -> Response:
    """Forget a response."""
    response_id = request.path_params["id"]
    _store_of(request).delete(response_id)
    answer = msgspec.json.encode(DeletedResponse(response_id))
    return Response(answer, media_type="application/json")


def _store_of(request: Request) -> ResponseStore:
    return cast("ResponseStore", request.app.state.responses)


async def _prepare(request: Request, body: bytes) -> _Job:
    model, store = service_of(request).require_model(), _store_of(request)
    wanted = decode_body(body, ResponsesRequest)
    wanted.check()
    previous: tuple[ChatMessage, ...] = ()
    if wanted.previous_response_id is not None:
        previous = store.get(wanted.previous_response_id, "previous_response_id").messages
    with renaming(wanted.param_name):
        chat = wanted.chat(previous)
        work = await model.prepare(chat, len(body))
    writer = ResponseWriter(wanted, work.params, uuid.uuid4().hex, model.name, int(time.time()))
    return _Job(model, store, wanted, chat, work, (*previous, *wanted.messages()), writer)


async def _events(job: _Job) -> AsyncGenerator[bytes]:
    usage = UsageCounter(
        job.work.num_prompt_tokens, summarises_drafts=job.request.summarises_drafts
    )
    reader, writer = AnswerReader(job.work.plan), job.writer
    finish_reason = None
    beginning = writer.begin()
    async with aclosing(job.deltas()) as deltas:
        async for delta in deltas:
            usage.add(delta)
            answer = reader.read(delta)
            finish_reason = answer.finish_reason
            for event in (*beginning, *writer.take(answer.events, job.logprobs(delta))):
                yield event
    for event in writer.finish():
        yield event
    status = status_of(finish_reason)
    job.finish(msgspec.json.encode(writer.body(status, usage.usage())))
    yield writer.end(status, usage.usage())


async def _collect(job: _Job) -> bytes:
    """The whole response: what its events build up."""
    async with aclosing(_events(job)) as events:
        async for _ in events:
            pass
    return job.body
