"""The end points of `hasten.proto`: each checks, asks the served model, and writes messages.

Exercised by `pytest tests/unit/api/test_grpc.py`.
"""

from __future__ import annotations

import uuid
from contextlib import aclosing, asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

import grpc
import numpy as np
from hasten.api.grpc import hasten_pb2 as pb
from hasten.api.grpc.answers import GenerationWriter, score_response
from hasten.api.grpc.errors import answering_errors
from hasten.api.grpc.requests import check_known, embedding_of, generation_of, scoring_of
from hasten.api.http.embeddings import check_embeds, normalized
from hasten.api.http.errors import ApiError, naming_parameters
from hasten.api.security.caller import Caller

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence

    from hasten.api.grpc.requests import GrpcScoring
    from hasten.api.http.served_model import ServedModel, Work
    from hasten.api.http.service import Service
    from hasten.api.security.keys import Key
    from hasten.core.messages import PositionLogprobs

SERVICE_NAME = pb.DESCRIPTOR.services_by_name["Hasten"].full_name
MAX_REQUEST_ID_LEN = 256  # characters


class Servicer:
    """`drain` begins the server's shutdown. Ids of open requests are unique."""

    def __init__(self, service: Service, drain: Callable[[], None]) -> None:
        self._service = service
        self._drain = drain
        self._open_ids: dict[str, str] = {}  # the engine's, by the client's

    def handlers(self) -> grpc.GenericRpcHandler:
        """What a gRPC server routes the calls of `SERVICE_NAME` to."""
        unary = grpc.unary_unary_rpc_method_handler
        calls = {
            "Generate": grpc.unary_stream_rpc_method_handler(
                self.generate,
                pb.GenerateRequest.FromString,
                pb.GenerateResponse.SerializeToString,
            ),
        } | {
            name: unary(call, asked.FromString, answered.SerializeToString)
            for name, call, asked, answered in (
                ("Score", self.score, pb.ScoreRequest, pb.ScoreResponse),
                ("Embed", self.embed, pb.EmbedRequest, pb.EmbedResponse),
                ("Abort", self.abort, pb.AbortRequest, pb.AbortResponse),
                ("Capacity", self.capacity, pb.CapacityRequest, pb.CapacityResponse),
                ("Drain", self.drain, pb.DrainRequest, pb.DrainResponse),
            )
        }
        return grpc.method_handlers_generic_handler(SERVICE_NAME, calls)

    async def generate(
        self, message: pb.GenerateRequest, context: grpc.aio.ServicerContext
    ) -> AsyncGenerator[pb.GenerateResponse]:
        """One message for each step that lets a sample show something.

        A cancelled call, or one past its deadline, is closed here, which aborts the request.
        """
        async with self._work(context) as model:
            wanted = generation_of(message, context.time_remaining())
            with self._opened(message.request_id) as (shown_id, request_id):
                work = await model.prepare(wanted, message.ByteSize())
                writer = GenerationWriter(shown_id, work)
                with naming_parameters(wanted.param_name):
                    async with aclosing(model.generate(request_id, work, 0, wanted)) as deltas:
                        async for delta in deltas:
                            writer.count(delta)
                            if not delta.is_empty:
                                yield writer.message(delta)

    async def score(
        self, message: pb.ScoreRequest, context: grpc.aio.ServicerContext
    ) -> pb.ScoreResponse:
        async with self._work(context) as model:
            wanted = scoring_of(message)
            with self._opened("") as (_, request_id):
                work = await model.prepare(wanted, message.ByteSize())
                with naming_parameters(wanted.param_name):
                    positions = await _prompt_scores(model, request_id, work, wanted)
        return score_response(work.prompts[0], positions, message.num_top)

    async def embed(
        self, message: pb.EmbedRequest, context: grpc.aio.ServicerContext
    ) -> pb.EmbedResponse:
        async with self._work(context) as model:
            wanted, pooling = embedding_of(message)
            check_embeds(model)
            with self._opened("") as (_, request_id), naming_parameters(wanted.param_name):
                work = await model.prepare(wanted, message.ByteSize())
                values = await model.embed(request_id, work, 0, wanted, pooling)
        vector = np.array(values, np.float32)
        if message.normalize or not message.HasField("normalize"):
            vector = normalized(vector)
        return pb.EmbedResponse(values=vector, num_prompt_tokens=work.num_prompt_tokens)

    async def abort(
        self, message: pb.AbortRequest, context: grpc.aio.ServicerContext
    ) -> pb.AbortResponse:
        async with self._call(context) as model:
            check_known(message)
            request_id = self._open_ids.get(message.request_id)
            was_open = request_id is not None and model.client.abort(
                request_id, "the request was aborted by Abort"
            )
            return pb.AbortResponse(was_open=was_open)

    async def capacity(
        self, message: pb.CapacityRequest, context: grpc.aio.ServicerContext
    ) -> pb.CapacityResponse:
        async with self._call(context) as model:
            check_known(message)
            stats = await model.client.stats()
            return pb.CapacityResponse(
                model=model.name,
                max_model_len=model.info.max_model_len,
                num_running=stats.num_running,
                num_waiting=stats.num_waiting,
                num_free_blocks=stats.num_free_blocks,
                num_total_blocks=stats.num_total_blocks,
                predicted_ttft_s=stats.predicted_wait_s,
            )

    async def drain(
        self, message: pb.DrainRequest, context: grpc.aio.ServicerContext
    ) -> pb.DrainResponse:
        async with self._call(context):
            check_known(message)
            if self._service.keyring is None and not _is_local(context.peer()):
                raise ApiError(
                    403, "without an API key only this machine may drain the server (--api-key)"
                )
            if not self._key(context).is_admin:
                raise ApiError(403, "this key may not drain the server (admin)")
            self._drain()
            return pb.DrainResponse(num_open_requests=self._service.num_active)

    @asynccontextmanager
    async def _call(self, context: grpc.aio.ServicerContext) -> AsyncIterator[ServedModel]:
        """What every call passes: the key, and a model that is there."""
        async with answering_errors(context):
            self._key(context)
            yield self._service.require_model()

    @asynccontextmanager
    async def _work(self, context: grpc.aio.ServicerContext) -> AsyncIterator[ServedModel]:
        """The same for calls that compute, which count as open requests of their key's."""
        async with answering_errors(context):
            with self._service.work(Caller(self._key(context))):
                yield self._service.require_model()

    def _key(self, context: grpc.aio.ServicerContext) -> Key:
        return self._service.check_key(_authorization(context.invocation_metadata()))

    @contextmanager
    def _opened(self, wanted_id: str) -> Iterator[tuple[str, str]]:
        """The id that the client knows a request by, and the engine's, while it is open.

        The engine's is never used again: a client that cancels and asks anew under its old id
        gets nothing of what was still on its way.
        """
        unique = uuid.uuid4().hex
        shown_id = wanted_id or f"grpc-{unique}"
        if len(shown_id) > MAX_REQUEST_ID_LEN:
            reason = f"request_id has more than {MAX_REQUEST_ID_LEN} characters"
            raise ApiError(400, reason, param="request_id")
        if shown_id in self._open_ids:
            reason = f"request_id {shown_id!r} is in use"
            raise ApiError(409, reason, param="request_id")
        self._open_ids[shown_id] = f"{wanted_id or 'grpc'}-{unique}"
        try:
            yield shown_id, self._open_ids[shown_id]
        finally:
            del self._open_ids[shown_id]


async def _prompt_scores(
    model: ServedModel, request_id: str, work: Work, wanted: GrpcScoring
) -> Sequence[PositionLogprobs | None]:
    """The log-probabilities of the prompt's tokens; the first output brings them."""
    async with aclosing(model.generate(request_id, work, 0, wanted)) as deltas:
        first = await anext(deltas)
    assert first.prompt_logprobs is not None
    return first.prompt_logprobs


def _authorization(metadata: Sequence[tuple[str, str | bytes]]) -> bytes:
    given = next((value for name, value in metadata if name == "authorization"), "")
    return given.encode() if isinstance(given, str) else given


def _is_local(peer: str) -> bool:
    """Whether a peer, as gRPC writes it ("ipv4:127.0.0.1:4711"), is on this machine."""
    return peer.startswith(("ipv4:127.", "ipv6:%5B::1%5D", "ipv6:[::1]", "unix:"))
