"""A server with a key file: who may ask what, how much, and what is told of it."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from hasten.api.security.keys import digest_of

from tests.helpers.server_process import FAKE, ServerProcess, server_process

ADMIN, USER = "the key of the admin", "the key of a user"
SECRET_TEXT = "a text that no log may hold"
ORIGIN = "https://pages.example"


@pytest.fixture(name="keyed", scope="module")
def _keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder: Path = tmp_path_factory.mktemp("keyed")
    keys = folder / "keys.toml"
    keys.write_text(
        f'[boss]\nsha256 = "{digest_of(ADMIN).hex()}"\nadmin = true\n'
        f'[user]\nsha256 = "{digest_of(USER).hex()}"\nmax_concurrent_requests = 1\n'
    )
    flags = (
        "--port=0",
        f"--api-key-file={keys}",
        f"--allowed-origins={ORIGIN}",
        "--log-requests",
        "--log-format=json",
        "--isolate-cache-by-key",
    )
    with server_process(folder, ("build_remembering", *flags), start=FAKE) as server:
        assert server.url, server.log
        yield server


def client_of(server: ServerProcess, key: str) -> httpx.Client:
    headers = {"authorization": f"Bearer {key}"}
    return httpx.Client(base_url=server.url, headers=headers, timeout=60)


def complete(client: httpx.Client, max_tokens: int = 3) -> httpx.Response:
    body = {"prompt": SECRET_TEXT, "max_tokens": max_tokens, "ignore_eos": True}
    return client.post("/v1/completions", json=body)


def test_only_known_keys_are_let_in(keyed: ServerProcess) -> None:
    for key in ("nobody", "wrong", "boss"):
        with client_of(keyed, key) as client:
            refused = complete(client)
            assert refused.status_code == 401
            assert refused.headers["www-authenticate"] == "Bearer"
            assert client.get("/v1/live").status_code == 401
            assert client.get("/health").status_code == 200
            assert client.get("/").status_code == 200
    with client_of(keyed, USER) as client:
        assert complete(client).status_code == 200


def test_one_key_may_ask_so_much_at_once(keyed: ServerProcess) -> None:
    with client_of(keyed, USER) as user, ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda _: complete(user, 40), range(4)))
    statuses = sorted(answer.status_code for answer in answers)
    assert statuses[0] == 200
    assert statuses[-1] == 429
    refused = next(answer for answer in answers if answer.status_code == 429)
    assert refused.json()["error"]["code"] == "rate_limit_exceeded"
    assert int(refused.headers["retry-after"]) >= 1


def test_only_admins_see_what_runs(keyed: ServerProcess) -> None:
    with client_of(keyed, USER) as user, client_of(keyed, ADMIN) as admin:
        assert user.get("/v1/debug/requests").status_code == 403
        assert user.get("/v1/live").status_code == 200
        body = {"prompt": SECRET_TEXT, "max_tokens": 200, "ignore_eos": True, "stream": True}
        with user.stream("POST", "/v1/completions", json=body) as answer:
            assert answer.status_code == 200
            pieces = answer.iter_raw()
            next(pieces)
            listed = admin.get("/v1/debug/requests").json()["data"]
        assert [entry["client"] for entry in listed] == ["user"]
        assert listed[0]["num_prompt_tokens"] > 0
        assert SECRET_TEXT not in json.dumps(listed)


def test_metrics_name_keys_and_never_show_them(keyed: ServerProcess) -> None:
    with client_of(keyed, ADMIN) as admin:
        assert complete(admin).status_code == 200
        metrics = admin.get("/metrics").text
    assert 'hasten_key_output_tokens_total{key="boss"}' in metrics
    assert ADMIN not in metrics


def test_pages_of_the_named_origin_may_ask(keyed: ServerProcess) -> None:
    asking = {"access-control-request-method": "POST"}
    with client_of(keyed, USER) as client:
        named = client.options("/v1/completions", headers=asking | {"origin": ORIGIN})
        other = client.options("/v1/completions", headers=asking | {"origin": "https://evil.test"})
    assert named.headers["access-control-allow-origin"] == ORIGIN
    assert "access-control-allow-origin" not in other.headers


def test_no_key_finds_in_the_cache_what_another_asked(keyed: ServerProcess) -> None:
    def num_cached(key: str, salt: str | None = None) -> int:
        body = {"prompt": "something private", "max_tokens": 1, "cache_salt": salt}
        with client_of(keyed, key) as client:
            usage = client.post("/v1/completions", json=body).json()["usage"]
        num_cached: int = usage["prompt_tokens_details"]["cached_tokens"]
        return num_cached

    assert num_cached(ADMIN) == 0
    assert num_cached(ADMIN) > 0
    assert num_cached(USER) == 0
    assert num_cached(USER, salt="user") == 0
    assert num_cached(ADMIN, salt="user") == 0


def test_logs_are_json_and_hold_no_prompt(keyed: ServerProcess) -> None:
    with client_of(keyed, ADMIN) as admin:
        assert complete(admin, 5).status_code == 200
        assert admin.get("/health").status_code == 200
    url = httpx.URL(keyed.url)
    with socket.create_connection((url.host, url.port or 0), timeout=20) as stranger:
        stranger.sendall(b"this is no HTTP\r\n\r\n")
        assert b" 400 " in stranger.recv(4096)
    lines = [json.loads(line) for line in keyed.log]
    records = [line for line in lines if line["logger"] == "hasten.requests"]
    assert any(
        record["key"] == "boss" and record["output_tokens"] == 5 and record["ttft_ms"] > 0
        for record in records
    )
    assert SECRET_TEXT not in "".join(keyed.log)


def test_without_the_flag_no_page_may_ask(http: httpx.Client) -> None:
    answer = http.options(
        "/v1/completions",
        headers={"origin": ORIGIN, "access-control-request-method": "POST"},
    )
    assert "access-control-allow-origin" not in answer.headers
