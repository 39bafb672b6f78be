"""Clients that send slowly, or stop sending: they hold nothing for longer than the limits."""

from __future__ import annotations

import json
import socket
import time
from contextlib import closing

import httpx
import pytest

CHAT = "/v1/chat/completions"


def connect(http: httpx.Client) -> socket.socket:
    host, port = http.base_url.host, http.base_url.port
    assert port is not None
    return socket.create_connection((host, port), timeout=20)


def head(http: httpx.Client, content_length: int) -> bytes:
    key = http.headers["authorization"]
    lines = (
        f"POST {CHAT} HTTP/1.1",
        "host: x",
        f"authorization: {key}",
        f"content-length: {content_length}",
    )
    return "\r\n".join((*lines, "", "")).encode()


def dribble(client: socket.socket, data: bytes) -> None:
    """Send byte by byte, until the server has had enough."""
    for i in range(len(data)):
        try:
            client.sendall(data[i : i + 1])
        except OSError:
            return
        time.sleep(0.05)


def read_all(client: socket.socket) -> bytes:
    received = b""
    try:
        while piece := client.recv(4096):
            received += piece
    except ConnectionResetError:
        pass
    return received


@pytest.fixture(autouse=True)
def _short_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hasten.api.http.body.BODY_LIMIT_S", 0.5)
    monkeypatch.setattr("hasten.api.http.connections.ARRIVAL_LIMIT_S", 1.0)


def test_a_body_that_does_not_arrive_is_given_up(http: httpx.Client) -> None:
    with closing(connect(http)) as client:
        client.sendall(head(http, 1000) + b'{"messages"')
        answer = read_all(client)  # and then the connection is closed
    status, _, body = answer.partition(b"\r\n\r\n")
    assert status.startswith(b"HTTP/1.1 408 ")
    assert json.loads(body)["error"]["code"] == "request_timeout"


def test_a_body_sent_byte_by_byte(http: httpx.Client) -> None:
    with closing(connect(http)) as client:
        client.sendall(head(http, 1000))
        dribble(client, b" " * 100)
        assert read_all(client).startswith((b"HTTP/1.1 408 ", b""))
    assert http.get("/health").status_code == 200


@pytest.mark.parametrize("sent", [b"", b"POST /v1/chat/comp"])
def test_a_request_that_never_comes_closes_its_connection(http: httpx.Client, sent: bytes) -> None:
    with closing(connect(http)) as client:
        client.sendall(sent)
        assert read_all(client) == b""


def test_an_answer_may_take_longer_than_a_request(slow_http: httpx.Client) -> None:
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 100}
    answer = slow_http.post(CHAT, json=body)
    assert answer.json()["usage"]["completion_tokens"] == 100
    # The connection is kept, and good for another request.
    assert slow_http.post(CHAT, json=body | {"max_tokens": 1}).status_code == 200


def test_a_client_that_leaves_within_its_body(http: httpx.Client) -> None:
    with closing(connect(http)) as client:
        client.sendall(head(http, 1000) + b"{")
    assert http.get("/health").status_code == 200


def test_a_client_that_reads_nothing_is_dropped(
    slow_http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hasten.api.http.connections.WRITE_LIMIT_S", 0.5)
    answer = {"max_tokens": 4000, "ignore_eos": True, "n": 16, "stream": True}
    fat = {"logprobs": True, "top_logprobs": 20}
    messages = [{"role": "user", "content": "an answer of more than a minute"}]
    body = json.dumps({"messages": messages} | answer | fat).encode()

    def runs() -> bool:
        return bool(slow_http.get("/v1/debug/requests").json()["data"])

    with closing(connect(slow_http)) as client:
        client.sendall(head(slow_http, len(body)) + body)
        deadline = time.monotonic() + 60
        while not runs():
            assert time.monotonic() < deadline, "it has not begun"
        while runs():
            assert time.monotonic() < deadline, "it goes on for nobody"
            time.sleep(0.1)
