"""Batches of requests in files, against a server that answers with the prompt."""

from __future__ import annotations

import asyncio
import json
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import pytest
from hasten.api.batch import BadLine, BatchError, BatchRunner, keep_answered, read_requests
from hasten.api.cli.main import main

NAMES = ("one", "two", "three", "four")


def line(name: str, **changes: Any) -> dict[str, Any]:
    body = {"prompt": name, "max_tokens": 1 + len(name)}
    return {"custom_id": name, "method": "POST", "url": "/v1/completions", "body": body} | changes


def write(path: Path, lines: list[Any]) -> Path:
    path.write_text("".join(json.dumps(entry) + "\n" for entry in lines))
    return path


def answers(path: Path) -> dict[str | None, dict[str, Any]]:
    found = [json.loads(entry) for entry in path.read_text().splitlines()]
    assert len({entry["id"] for entry in found}) == len(found)
    return {entry["custom_id"]: entry for entry in found}


def run(http: httpx.Client, source: Path, target: Path) -> int:
    """The exit status of the command."""
    key = http.headers["authorization"].removeprefix("Bearer ")
    arguments = ["-i", str(source), "-o", str(target), "--url", str(http.base_url)]
    with pytest.raises(SystemExit) as caught:
        main(["run-batch", *arguments, "--api-key", key])
    assert isinstance(caught.value.code, int)
    return caught.value.code


def test_every_line_gets_an_answer(http: httpx.Client, tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", [line(name) for name in NAMES])
    target = tmp_path / "out.jsonl"
    assert run(http, source, target) == 0
    found = answers(target)
    assert set(found) == set(NAMES)
    for name, entry in found.items():
        assert entry["error"] is None
        assert entry["response"]["status_code"] == 200
        assert entry["response"]["body"]["choices"][0]["text"] == name


def test_what_is_no_request_is_told_by_its_number(
    http: httpx.Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    lines = [
        json.dumps(line("one")),
        "{broken",
        "",
        json.dumps(line("two", url="/v1/files")),
        json.dumps(line("one")),
        json.dumps(line("refused", body={"prompt": "x", "temprature": 1})),
        json.dumps(line("odd", metod="POST")),
        json.dumps(line("streamed", body={"prompt": "x", "stream": True})),
    ]
    source.write_text("\n".join(lines))
    assert run(http, source, target) == 1
    found = [json.loads(entry) for entry in target.read_text().splitlines()]
    assert len(found) == 7
    messages = [entry["error"]["message"] for entry in found if entry["error"]]
    assert sorted(message.partition(":")[0] for message in messages) == [
        "line 2",
        "line 4",
        "line 5",
        "line 7",
        "line 8",
    ]
    assert "line 5: custom_id 'one' is that of line 1" in messages
    shown = capsys.readouterr().err
    assert all(message in shown for message in messages)
    (refused,) = [entry for entry in found if entry["custom_id"] == "refused"]
    assert refused["response"]["status_code"] == 400
    assert refused["response"]["body"]["error"]["param"] == "temprature"


def test_an_interrupted_run_goes_on(http: httpx.Client, tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", [line(name) for name in NAMES])
    target = tmp_path / "out.jsonl"
    assert run(http, source, target) == 0
    done = target.read_text().splitlines(keepends=True)
    failed = {"id": "x", "custom_id": "three", "response": {"status_code": 503}, "error": None}
    kept = [entry for entry in done if json.loads(entry)["custom_id"] in {"one", "two"}]
    # Cut off in the middle of a line.
    target.write_text("".join(kept) + json.dumps(failed) + "\n" + done[3][:20])
    assert keep_answered(target) == {"one", "two"}
    assert target.read_text() == "".join(kept)
    assert run(http, source, target) == 0
    assert target.read_text().startswith("".join(kept))
    assert set(answers(target)) == set(NAMES)


def test_an_output_that_keeps_nothing(
    http: httpx.Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write(tmp_path / "in.jsonl", [line("one")])
    assert run(http, source, Path("/dev/null")) == 0
    if Path("/dev/full").exists():
        assert run(http, source, Path("/dev/full")) == 1
        assert "No space left" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b'{"a":\n [1]}', {"a": [1]}),
        (b"<html>\n</html>", "<html>\n</html>"),
        (b'"\xff"', '"\ufffd"'),
        (b"[" * 10_000, "[" * 10_000),
    ],
)
def test_any_answer_is_one_line(tmp_path: Path, body: bytes, told: Any) -> None:
    """What stands between may answer in the server's place."""

    class Elsewhere(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    target = tmp_path / "out.jsonl"
    with HTTPServer(("127.0.0.1", 0), Elsewhere) as gateway, target.open("wb") as output:
        Thread(target=gateway.handle_request).start()
        runner = BatchRunner(f"http://127.0.0.1:{gateway.server_port}", {}, 1, output)
        asyncio.run(runner.run(read_requests([json.dumps(line("one")).encode()]), set()))
    (answer,) = answers(target).values()
    assert answer["response"]["body"] == told


def test_a_url_of_no_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write(tmp_path / "in.jsonl", [line("one")])
    with pytest.raises(SystemExit):
        main(["run-batch", "-i", str(source), "-o", str(tmp_path / "o"), "--url", "ftp://x"])
    assert "begins with http://" in capsys.readouterr().err


def test_a_file_that_is_no_output_is_left_alone(tmp_path: Path) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("my notes\nmore\n")
    with pytest.raises(BatchError, match="line 1"):
        keep_answered(notes)
    assert notes.read_text() == "my notes\nmore\n"


def test_at_most_so_many_at_once(http: httpx.Client, tmp_path: Path) -> None:
    lines = [json.dumps(line(f"name {i}")).encode() for i in range(20)]
    with (tmp_path / "out.jsonl").open("wb") as output:
        runner = BatchRunner(str(http.base_url), dict(http.headers), 3, output)
        summary = asyncio.run(runner.run(read_requests(lines), {"name 0"}))
    assert (summary.num_kept, dict(summary.statuses), summary.num_failed) == (1, {200: 19}, 0)


def test_reading_lines() -> None:
    (bad,) = read_requests([b"[]"])
    assert isinstance(bad, BadLine)
    assert bad.message == "line 1: Expected `object`, got `array`"
