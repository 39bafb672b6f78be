"""`POST /v1/embeddings`: the final hidden states of texts, pooled.

Exercised by `pytest tests/cpu/engine/test_embeddings.py tests/unit/api/test_embeddings.py`.
"""

from __future__ import annotations

import asyncio
import base64
import uuid
from typing import TYPE_CHECKING, Literal

import msgspec
from hasten.api.http.body import decode_body, read_body, renaming
from hasten.api.http.errors import ApiError, naming_parameters, unsupported
from hasten.api.http.requests import CompletionRequest, Int32
from hasten.api.http.service import service_of
from hasten.api.http.streaming import while_connected
from starlette.responses import Response

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from hasten.api.http.served_model import ServedModel, Work
    from starlette.requests import Request

    F32 = npt.NDArray[np.float32]


class EmbeddingRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body. `pooling` and `normalize` are not of OpenAI's API, whose vectors have length 1."""

    input: str | list[str | int | list[int]]
    model: str | None = None
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Int32 | None = None
    user: str | None = None
    pooling: Literal["mean", "last"] = "mean"
    normalize: bool = True
    add_special_tokens: bool = True
    priority: Int32 = 0
    cache_salt: str | None = None
    deadline_ms: float | None = None

    def prompts(self) -> CompletionRequest:
        """The request for the engine's part of it."""
        if self.dimensions is not None:
            raise unsupported("dimensions", "dimensions: vectors have the model's own length")
        return CompletionRequest(
            prompt=self.input,
            model=self.model,
            max_tokens=1,
            add_special_tokens=self.add_special_tokens,
            priority=self.priority,
            cache_salt=self.cache_salt,
            deadline_ms=self.deadline_ms,
        )


class Embedding(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers, or their bytes (little-endian float32) in base64."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingUsage(msgspec.Struct, frozen=True):
    prompt_tokens: int
    total_tokens: int


class EmbeddingList(msgspec.Struct, frozen=True, kw_only=True):
    """The answer."""

    object: Literal["list"] = "list"
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage


def param_name(field: str) -> str:
    """What the client calls what the engine finds fault with."""
    return "input" if field in {"prompt", "max_tokens"} else field


async def create_embeddings(request: Request) -> Response:
    """Embed one or many texts."""
    model = service_of(request).require_model()
    body = await read_body(request)
    wanted = decode_body(body, EmbeddingRequest)
    check_embeds(model)
    prompts = wanted.prompts()
    with renaming(param_name), naming_parameters(param_name):
        work = await while_connected(request.receive, model.prepare(prompts, len(body)))
        vectors = await while_connected(
            request.receive, embed_all(model, work, prompts, wanted.pooling)
        )
    return Response(_answer(model, work, wanted, vectors), media_type="application/json")


def check_embeds(model: ServedModel) -> None:
    """Raises ApiError where the server was not started for embeddings."""
    if model.info.embedding_width is None:
        raise ApiError(400, "this server embeds nothing (--enable-embeddings)", code="unsupported")


async def embed_all(
    model: ServedModel, work: Work, request: CompletionRequest, pooling: str
) -> list[F32]:
    """The vectors of all prompts, as they are pooled. Ends all of them when one fails."""
    # Here and not above: most servers embed nothing, and are smaller by 10 MB without it.
    import numpy as np

    name = f"embd-{uuid.uuid4().hex}"
    tasks = [
        asyncio.create_task(model.embed(f"{name}-{i}", work, i, request, pooling))
        for i in range(len(work.prompts))
    ]
    try:
        return [np.array(vector, np.float32) for vector in await asyncio.gather(*tasks)]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def normalized(vector: F32) -> F32:
    """The same direction at length 1; a vector without one stays as it is."""
    import numpy as np

    length = np.linalg.norm(vector.astype(np.float64))
    return vector if length == 0 else (vector / length).astype(np.float32)


def _answer(model: ServedModel, work: Work, wanted: EmbeddingRequest, vectors: list[F32]) -> bytes:
    shown = [normalized(vector) if wanted.normalize else vector for vector in vectors]
    data = [
        Embedding(index=i, embedding=_encoded(vector, wanted.encoding_format))
        for i, vector in enumerate(shown)
    ]
    usage = EmbeddingUsage(work.num_prompt_tokens, work.num_prompt_tokens)
    return msgspec.json.encode(EmbeddingList(data=data, model=model.name, usage=usage))


def _encoded(vector: F32, form: str) -> list[float] | str:
    if form == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    numbers: list[float] = vector.tolist()
    return numbers
