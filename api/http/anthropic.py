"""`/v1/messages`: Anthropic's Messages API, over the same chats as `/v1/chat/completions`.

Exercised by `pytest tests/unit/api/test_anthropic.py`.
"""

from __future__ import annotations

import uuid
from contextlib import aclosing
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING

import msgspec
from hasten.api.http.answers import UsageCounter
from hasten.api.http.anthropic_answer import Ending, MessageWriter, error_event, error_response
from hasten.api.http.anthropic_request import (
    CountTokensRequest,
    MessagesRequest,
    TokenCount,
    param_name,
)
from hasten.api.http.body import decode_body, read_body, renaming
from hasten.api.http.chat_answer import AnswerReader
from hasten.api.http.errors import naming_parameters, to_api_error
from hasten.api.http.named_events import ending_with_error
from hasten.api.http.service import service_of
from hasten.api.http.streaming import ClientGoneError, start_stream, while_connected
from starlette.responses import Response

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from hasten.api.http.requests import ChatRequest
    from hasten.api.http.served_model import ServedModel, Work
    from hasten.api.text.sample_text import SampleDelta
    from starlette.requests import Request


@dataclass(slots=True)
class _Job:
    """One request, checked and tokenised; `body` is the whole answer, once it is there."""

    model: ServedModel
    chat: ChatRequest
    work: Work
    writer: MessageWriter
    body: bytes = b""

    def deltas(self) -> AsyncGenerator[SampleDelta]:
        return self.model.generate(self.writer.message_id, self.work, 0, self.chat)


def _with_its_errors(
    endpoint: Callable[[Request], Awaitable[Response]],
) -> Callable[[Request], Awaitable[Response]]:
    """The end point, whose errors have Anthropic's shape."""

    @wraps(endpoint)
    async def answer(request: Request) -> Response:
        try:
            return await endpoint(request)
        except ClientGoneError:
            raise
        except Exception as error:
            told = to_api_error(error)
            if told.status == 500:
                raise
            return error_response(told)

    return answer


@_with_its_errors
async def create_message(request: Request) -> Response:
    """Answer a conversation, streamed or whole."""
    model = service_of(request).require_model()
    body = await read_body(request)
    chat = decode_body(body, MessagesRequest).chat()
    with renaming(param_name), naming_parameters(param_name):
        work = await while_connected(request.receive, model.prepare(chat, len(body)))
        job = _Job(model, chat, work, MessageWriter(f"msg_{uuid.uuid4().hex}", model.name))
        if chat.stream:
            events = ending_with_error(_events(job), error_event)
            return await start_stream(request.receive, events)
        answer = await while_connected(request.receive, _collect(job))
    return Response(answer, media_type="application/json")


@_with_its_errors
async def count_tokens(request: Request) -> Response:
    """How many tokens a conversation has as a prompt."""
    model = service_of(request).require_model()
    body = await read_body(request)
    chat = decode_body(body, CountTokensRequest).chat()
    with renaming(param_name):
        work = await while_connected(request.receive, model.prepare(chat, len(body)))
    answer = TokenCount(work.num_prompt_tokens)
    return Response(msgspec.json.encode(answer), media_type="application/json")


async def _events(job: _Job) -> AsyncGenerator[bytes]:
    usage = UsageCounter(job.work.num_prompt_tokens)
    reader = AnswerReader(job.work.plan)
    has_begun = False
    ending = Ending.of(None, None)
    async with aclosing(job.deltas()) as deltas:
        async for delta in deltas:
            usage.add(delta)
            answer = reader.read(delta)
            ending = Ending.of(answer.finish_reason, delta.stop_reason)
            # What comes first tells what the cache knew of the prompt.
            for event in () if has_begun else job.writer.begin(usage.usage()):
                yield event
            has_begun = True
            for event in job.writer.take(answer.events):
                yield event
    for event in job.writer.end(ending, usage.usage()):
        yield event
    job.body = msgspec.json.encode(job.writer.body(ending, usage.usage()))


async def _collect(job: _Job) -> bytes:
    """The whole message: what its events build up."""
    async with aclosing(_events(job)) as events:
        async for _ in events:
            pass
    return job.body
