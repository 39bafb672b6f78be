"""Reading server-sent events in tests."""

import json
from typing import Any

import httpx


def read_events(client: httpx.Client, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """All events of a stream, which must end with [DONE] and nothing after it."""
    with client.stream("POST", path, json=body | {"stream": True}) as response:
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        lines = [line for line in response.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def joined_choices(events: list[dict[str, Any]], field: str) -> dict[int, dict[str, Any]]:
    """The chunks of each choice put together: text, log-probabilities, ending.

    `field` is "delta" for chats and "text" for text completions.
    """
    choices: dict[int, dict[str, Any]] = {}
    for event in events:
        for chunk in event["choices"]:
            choice = choices.setdefault(chunk["index"], {"text": "", "logprobs": None})
            assert "finish_reason" not in choice, "a chunk after the last one"
            piece = chunk["delta"].get("content", "") if field == "delta" else chunk["text"]
            choice["text"] += piece
            choice["logprobs"] = _extended(choice["logprobs"], chunk["logprobs"])
            if chunk["finish_reason"] is not None:
                choice |= {name: chunk[name] for name in ("finish_reason", "stop_reason")}
    return choices


def _extended(before: dict[str, Any] | None, more: dict[str, Any] | None) -> dict[str, Any] | None:
    if before is None or more is None:
        return more if before is None else before
    return {
        name: (value or []) + more[name] if value else more[name] for name, value in before.items()
    }
