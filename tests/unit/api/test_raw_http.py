"""What HTTP's own syntax allows and forbids, byte by byte: nothing is kept without a limit."""

from __future__ import annotations

import gc
import json
import logging
import time
from contextlib import closing

import httpx
import pytest
from hasten.api.http.connections import MAX_HEAD_BYTES

from tests.unit.api.test_slow_clients import connect, head, read_all

PIECE = b"a" * 2**16


def send_on(http: httpx.Client, begin: bytes) -> tuple[int, bytes]:
    """Begin a request and never end it: how many bytes it took, and what came back."""
    num_sent = 0
    with closing(connect(http)) as client:
        client.sendall(begin)
        client.settimeout(10)
        try:
            while num_sent < 2**26:
                num_sent += client.send(PIECE)
        except OSError:
            pass
        return num_sent, read_all(client)


@pytest.mark.parametrize(
    "begin",
    [
        pytest.param(b"GET /health HTTP/1.1\r\nx: ", id="header"),
        pytest.param(
            b"POST /v1/completions HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n0\r\nx: ",
            id="trailer",
        ),
    ],
)
def test_headers_without_an_end_are_cut_off(http: httpx.Client, begin: bytes) -> None:
    num_sent, answer = send_on(http, begin)
    # More than the limit is what the system's own buffers took.
    assert num_sent < 2**25
    # A reset may overtake the answer.
    assert not answer or b"headers_too_large" in answer


def test_large_bodies_are_no_headers(http: httpx.Client) -> None:
    assert http.get("/health", headers={"x": "a" * 1000}).status_code == 200
    body = {"prompt": "a" * (20 * MAX_HEAD_BYTES), "max_tokens": 1}
    assert http.post("/v1/completions", json=body).json()["error"]["param"] == "prompt"


def test_what_is_no_http_is_told_in_json(http: httpx.Client) -> None:
    with closing(connect(http)) as client:
        client.sendall(b"hello\r\n\r\n")
        status, _, body = read_all(client).partition(b"\r\n\r\n")
    assert status.startswith(b"HTTP/1.1 400 ")
    assert json.loads(body)["error"]["code"] == "invalid_http"


def test_a_wrong_method_is_told_the_right_ones(http: httpx.Client) -> None:
    response = http.put("/v1/completions")
    assert (response.status_code, response.headers["allow"]) == (405, "POST")


def test_a_client_that_leaves_is_no_error(
    slow_http: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    body = json.dumps({"prompt": ["a", "b"], "max_tokens": 2000, "ignore_eos": True}).encode()
    request = head(slow_http, len(body)).replace(b"/v1/chat/completions", b"/v1/completions")

    def num_running() -> int:
        return len(slow_http.get("/v1/debug/requests").json()["data"])

    def wait_for(num: int) -> None:
        deadline = time.monotonic() + 60
        while num_running() != num:
            assert time.monotonic() < deadline
            time.sleep(0.05)

    with caplog.at_level(logging.ERROR):
        with closing(connect(slow_http)) as client:
            client.sendall(request + body)
            wait_for(2)
        wait_for(0)
        gc.collect()
    assert not caplog.records
