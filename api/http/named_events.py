"""Server-sent events that carry a name, as the Responses and the Messages API write them.

Not here: those of chats and texts, which have data alone (`api.http.answers`).
"""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import msgspec
from hasten.api.http.errors import to_api_error

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from hasten.api.http.errors import ApiError


def named_event(name: str, data: dict[str, Any]) -> bytes:
    """One event; its data repeats the name as `type`."""
    body = msgspec.json.encode({"type": name} | data)
    return b"event: " + name.encode() + b"\ndata: " + body + b"\n\n"


async def ending_with_error(
    events: AsyncGenerator[bytes], write: Callable[[ApiError], bytes]
) -> AsyncGenerator[bytes]:
    """The events, and one made by `write` where they break off.

    What goes wrong before the first event is raised: until then an answer can have a status.
    """
    async with aclosing(events):
        yield await anext(events)
        try:
            async for event in events:
                yield event
        except Exception as error:  # noqa: BLE001  the status is sent: all that is left is an event
            yield write(to_api_error(error))
