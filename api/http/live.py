"""What runs now, for people who watch: the live view's numbers, and for admins the requests.

No text of any prompt or answer is in either. Exercised by
`pytest tests/unit/api/test_observability.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec
from hasten.api.http.errors import ApiError
from hasten.api.http.service import service_of
from hasten.core.messages import RequestState, Stats
from starlette.responses import Response

if TYPE_CHECKING:
    from starlette.requests import Request


class Latencies(msgspec.Struct, frozen=True):
    """By percentile; null where there were none."""

    ttft: dict[str, float | None]
    itl: dict[str, float | None]


class Live(Stats, frozen=True, kw_only=True, tag="stats"):
    """The answer of `/v1/live`."""

    model: str
    max_model_len: int
    num_open_requests: int
    latency_s: Latencies
    kv_blocks: list[str]


class RequestList(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `/v1/debug/requests`."""

    object: Literal["list"] = "list"
    data: list[RequestState]


async def live(request: Request) -> Response:
    """Counters, gauges, percentiles of the last minute and the map of KV blocks.

    `kv_blocks[group]` has a digit for each block, or for several of a large pool: 0 empty, 1 free
    but remembered, 2 held by one request, 3 shared.
    """
    service = service_of(request)
    model = service.require_model()
    stats, state = await model.client.stats(), await model.client.state()
    body = Live(
        **msgspec.structs.asdict(stats),
        model=model.name,
        max_model_len=model.info.max_model_len,
        num_open_requests=service.num_active,
        latency_s=Latencies(**service.metrics.latencies()),
        kv_blocks=["".join(map(str, cells)) for cells in state.blocks],
    )
    return _json(body)


async def debug_requests(request: Request) -> Response:
    """The requests of the engine, those that run first."""
    service = service_of(request)
    key = service.check_key(request.headers.get("authorization", "").encode())
    if not key.is_admin:
        raise ApiError(403, "this key may not see what others ask (admin)", code="not_admin")
    state = await service.require_model().client.state()
    return _json(RequestList(data=state.requests))


def _json(body: object) -> Response:
    headers = {"cache-control": "no-store"}
    return Response(msgspec.json.encode(body), headers=headers, media_type="application/json")
