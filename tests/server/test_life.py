"""How a server process starts, ends and dies; over an engine without a model."""

import contextlib
import json
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.helpers.fake_engine import DIE_TEXT
from tests.helpers.server_process import FAKE, ServerProcess, server_process

CHAT = "/v1/chat/completions"
ANY_PORT = ("--port", "0")


@contextmanager
def fake_server(tmp_path: Path, *flags: str, engine: str = "build_slow") -> Iterator[ServerProcess]:
    with server_process(tmp_path, (engine, *ANY_PORT, *flags), start=FAKE) as server:
        yield server


def body_of(max_tokens: int, *, stream: bool = False, content: str = "x") -> dict[str, Any]:
    messages = [{"role": "user", "content": content}]
    return {"messages": messages, "max_tokens": max_tokens, "stream": stream}


class Asking(threading.Thread):
    """A request on its way in another thread."""

    def __init__(self, server: ServerProcess, body: dict[str, Any]) -> None:
        super().__init__()
        self._client = server.client()
        self._body = body
        self.started_streaming = threading.Event()
        self.status = 0
        self.text = ""
        self.start()

    def run(self) -> None:
        with self._client, self._client.stream("POST", CHAT, json=self._body) as response:
            self.status = response.status_code
            for piece in response.iter_text():
                self.text += piece
                self.started_streaming.set()


def wait_running(server: ServerProcess, count: int) -> None:
    with server.client() as client:
        for _ in range(200):
            if f"hasten_num_running {count}.0" in client.get("/metrics").text:
                return
            time.sleep(0.02)
    raise AssertionError(f"never {count} requests at work: {server.log}")


def assert_gone(server: ServerProcess, engine: psutil.Process) -> None:
    assert not engine.is_running()
    assert server.left_behind() == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_open_requests_finish(tmp_path: Path, number: signal.Signals) -> None:
    with fake_server(tmp_path) as server, server.client() as client:
        engine = server.engine()
        asking = Asking(server, body_of(60))
        wait_running(server, 1)
        server.process.send_signal(number)
        time.sleep(0.1)
        assert client.get("/ready").status_code == 503
        assert client.get("/health").status_code == 200
        refused = client.post(CHAT, json=body_of(1))
        assert refused.status_code == 503
        assert "shutting down" in refused.json()["error"]["message"]
        asking.join()
        assert asking.status == 200
        assert json.loads(asking.text)["usage"]["completion_tokens"] == 60
        assert server.process.wait(10) == 0
        assert_gone(server, engine)


def test_past_the_deadline_requests_end_with_the_reason(tmp_path: Path) -> None:
    with fake_server(tmp_path, "--shutdown-timeout-s", "0.2") as server:
        engine = server.engine()
        whole = Asking(server, body_of(3000))
        streamed = Asking(server, body_of(3000, stream=True))
        wait_running(server, 2)
        server.process.terminate()
        whole.join()
        streamed.join()
        assert whole.status == 503
        assert json.loads(whole.text)["error"]["message"] == "the server is shutting down"
        assert streamed.status == 200
        last = streamed.text.strip().splitlines()[-1].removeprefix("data: ")
        assert json.loads(last)["error"]["code"] == "aborted"
        assert server.process.wait(10) == 0
        assert_gone(server, engine)


def test_a_second_signal_ends_at_once(tmp_path: Path) -> None:
    with fake_server(tmp_path) as server:
        engine = server.engine()
        asking = Asking(server, body_of(3000, stream=True))
        wait_running(server, 1)
        server.process.send_signal(signal.SIGINT)
        time.sleep(0.2)
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(5) == 130
        asking.join()
        assert_gone(server, engine)


@pytest.mark.parametrize("kill", [True, False])
def test_the_death_of_the_engine(tmp_path: Path, kill: bool) -> None:
    """Killed, or of an error of its own: requests fail, health says so, the server ends."""
    with fake_server(tmp_path) as server, server.client() as client:
        engine = server.engine()
        whole = Asking(server, body_of(3000))
        streamed = Asking(server, body_of(3000, stream=True))
        wait_running(server, 2)
        if kill:
            engine.kill()
        else:
            messages = [{"role": "assistant", "content": DIE_TEXT}]
            assert client.post(CHAT, json={"messages": messages}).status_code == 503
        whole.join()
        streamed.join()
        assert whole.status == 503
        assert json.loads(whole.text)["error"]["code"] == "engine_failed"
        assert "engine_failed" in streamed.text
        assert "[DONE]" not in streamed.text
        health = client.get("/health")
        assert health.status_code == 503
        assert ("signal 9" if kill else "told to die") in health.json()["status"]
        assert server.process.wait(10) == 1
        assert_gone(server, engine)


def test_an_engine_that_hangs_counts_as_dead(tmp_path: Path) -> None:
    with fake_server(tmp_path, "--stall-timeout-s", "0.5") as server, server.client() as client:
        engine = server.engine()
        asking = Asking(server, body_of(3000))
        wait_running(server, 1)
        engine.suspend()
        asking.join()
        assert asking.status == 503
        assert "said nothing" in json.loads(asking.text)["error"]["message"]
        assert client.get("/health").status_code == 503
        assert server.process.wait(10) == 1
        assert_gone(server, engine)


def test_a_server_that_is_killed_takes_its_engine_along(tmp_path: Path) -> None:
    with fake_server(tmp_path) as server:
        engine = server.engine()
        server.process.kill()
        server.process.wait()
        engine.wait(5)
        assert server.left_behind() == []


def test_a_port_in_use_is_one_line_before_the_model_loads(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        with fake_server(tmp_path, "--port", port, engine="build_broken") as server:
            assert server.process.wait(10) == 1
            reason = f"cannot listen on 127.0.0.1:{port}: Address already in use"
            assert server.log == [f"Error: {reason}"]


def test_a_model_that_does_not_load_is_one_line(tmp_path: Path) -> None:
    with fake_server(tmp_path, engine="build_broken") as server:
        assert server.process.wait(10) == 2
        assert server.log == ["Error: model.gguf: tensor 'output.weight' is truncated"]
        assert server.left_behind() == []


def test_it_answers_while_the_model_loads(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    statuses: list[int] = []

    def ask() -> None:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
            for _ in range(3000):
                with contextlib.suppress(httpx.ConnectError):
                    statuses.append(client.get("/ready").status_code)
                if statuses[-1:] == [200]:
                    return
                time.sleep(0.01)

    asking = threading.Thread(target=ask)
    asking.start()
    with fake_server(tmp_path, "--port", str(port), engine="build_sluggish"):
        asking.join()
    assert statuses[0] == 503
    assert statuses[-1] == 200


def test_a_template_that_loops_stops_nobody(tmp_path: Path) -> None:
    template = tmp_path / "loops.jinja"
    many = "{% for i in range(99999) %}"
    template.write_text(f"{many}{many}{{% endfor %}}{{% endfor %}}")
    flags = ("--chat-template", str(template))
    with fake_server(tmp_path, *flags) as server, server.client() as client:
        refused = client.post(CHAT, json=body_of(1))
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == "messages"
        assert "ran for more than" in refused.json()["error"]["message"]
        text = client.post("/v1/completions", json={"prompt": "x", "max_tokens": 1})
        assert text.status_code == 200


def test_the_name_and_the_key_that_were_asked_for(tmp_path: Path) -> None:
    flags = ("--served-model-name", "mine", "--api-key", "secret")
    with fake_server(tmp_path, *flags, engine="build_fake") as server, server.client() as client:
        assert client.post(CHAT, json=body_of(1)).status_code == 401
        client.headers["authorization"] = "Bearer secret"
        assert client.post(CHAT, json=body_of(1)).json()["model"] == "mine"


def test_an_empty_bearer_passes_without_a_key(tmp_path: Path) -> None:
    with fake_server(tmp_path, engine="build_fake") as server:
        host, port = server.url.removeprefix("http://").split(":")
        content = json.dumps(body_of(1))
        head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\nconnection: close\r\nauthorization: Bearer \r\n"
        with socket.create_connection((host, int(port))) as raw:
            raw.sendall(f"{head}content-length: {len(content)}\r\n\r\n{content}".encode())
            assert raw.recv(100).startswith(b"HTTP/1.1 200 ")
