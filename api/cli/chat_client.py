"""A small streaming client of a chat end point, on the standard library alone.

It blocks: a terminal has nothing else to do while an answer comes.
Exercised by `pytest tests/server/test_terminal.py`.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping, Sequence
    from http.client import HTTPResponse

CONNECT_TIMEOUT_S = 600.0


class ChatError(RuntimeError):
    """The server did not answer, or answered with an error."""


@dataclass(frozen=True, slots=True)
class ChatStatistics:
    """How one answer went."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    ttft_s: float
    decode_s: float
    finish_reason: str | None

    @property
    def tokens_per_s(self) -> float:
        """Decoding speed: the first token belongs to the prompt's time."""
        return (self.completion_tokens - 1) / self.decode_s if self.decode_s > 0 else 0.0

    def __str__(self) -> str:
        return (
            f"{self.prompt_tokens} prompt tokens ({self.cached_tokens} cached), "
            f"{self.completion_tokens} tokens, TTFT {self.ttft_s * 1000:.0f} ms, "
            f"{self.tokens_per_s:.0f} tok/s"
        )


class ChatClient:
    """One server. `statistics` describes the last answer that ran to its end.

    Raises ValueError for a URL that is none of HTTP.
    """

    def __init__(self, url: str, api_key: str | None = None) -> None:
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"{url!r}: the URL of a server begins with http:// or https://")
        self.url = url.rstrip("/").removesuffix("/v1")
        self.headers = {"Content-Type": "application/json"}
        if api_key is not None:
            self.headers["Authorization"] = f"Bearer {api_key}"
        self.statistics: ChatStatistics | None = None

    def model_name(self) -> str:
        """The name of the first model that the server has. Raises ChatError."""
        with self._open("/v1/models", None) as response:
            name: str = json.load(response)["data"][0]["id"]
            return name

    def stream(
        self, messages: Sequence[Mapping[str, str]], parameters: Mapping[str, Any]
    ) -> Generator[str]:
        """The pieces of an answer. Closing the iterator aborts it. Raises ChatError."""
        body = {
            "messages": messages,
            "stream": True,
            "stream_options": {"include_usage": True},
            **parameters,
        }
        begin_s = perf_counter()
        first_s = last_s = begin_s
        finish_reason = None
        with self._open("/v1/chat/completions", body) as response:
            for event in _events(response):
                if not event["choices"]:
                    self.statistics = _statistics(
                        event["usage"], first_s - begin_s, last_s - first_s, finish_reason
                    )
                    continue
                last_s = perf_counter()
                first_s = last_s if first_s == begin_s else first_s
                choice = event["choices"][0]
                finish_reason = choice["finish_reason"] or finish_reason
                yield choice["delta"].get("content") or ""

    def _open(self, path: str, body: Mapping[str, Any] | None) -> HTTPResponse:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, self.headers)  # noqa: S310  the user's own URL
        try:
            response: HTTPResponse = urllib.request.urlopen(request, timeout=CONNECT_TIMEOUT_S)  # noqa: S310  as above
        except urllib.error.HTTPError as error:
            with error:
                raise ChatError(_message(error.read(), str(error))) from error
        except (urllib.error.URLError, OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise ChatError(f"{self.url} does not answer: {reason}") from error
        return response


def _events(response: HTTPResponse) -> Iterator[dict[str, Any]]:
    """The events of a stream up to its end. Raises ChatError for one that is an error."""
    for line in response:
        data = line.strip().removeprefix(b"data: ")
        if data == b"[DONE]":
            return
        if data:
            event: dict[str, Any] = json.loads(data)
            if "error" in event:
                raise ChatError(event["error"]["message"])
            yield event
    raise ChatError("the answer broke off")


def _statistics(
    usage: Mapping[str, Any], ttft_s: float, decode_s: float, finish_reason: str | None
) -> ChatStatistics:
    details = usage.get("prompt_tokens_details") or {}
    return ChatStatistics(
        prompt_tokens=usage["prompt_tokens"],
        cached_tokens=details.get("cached_tokens", 0),
        completion_tokens=usage["completion_tokens"],
        ttft_s=ttft_s,
        decode_s=decode_s,
        finish_reason=finish_reason,
    )


def _message(body: bytes, otherwise: str) -> str:
    try:
        message: str = json.loads(body)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        return otherwise
    return message
