"""A served model measured over HTTP gives what the same model gives in process."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner
from hasten.evals.cli.main import cli
from hasten.evals.distribution import TopDistribution, divergence
from hasten.evals.engine_target import EngineTarget
from hasten.evals.target import CannotMeasureError, Prompt, Scored, TargetError
from hasten.evals.tasks.structured import Kind, fits, parse, structured_rows
from hasten.evals.url_target import UrlOptions, UrlTarget

from tests.helpers.server_process import ServerProcess, server_process

SUITE = """
name = "tiny"
description = "for tests"
[[blocks]]
kind = "text"
name = "text"
num_windows = 8
window_len = 48
limits = { kl_mean = 0.01 }
"""


@pytest.fixture(scope="module")
def server(flags: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    arguments = ["--port=0", *flags.split()]
    with server_process(tmp_path_factory.mktemp("server"), arguments) as process:
        assert process.url, process.log
        yield process


@pytest.fixture(scope="module")
def served(server: ServerProcess) -> Iterator[UrlTarget]:
    target = UrlTarget(server.url, UrlOptions(max_len=512))
    yield target
    target.close()


def test_scores_and_bounds_equal_those_in_process(
    served: UrlTarget, embedded: EngineTarget
) -> None:
    ids = embedded.encode("Nobody in Harrow Bay could say when the bell had stopped ringing.")
    scored = Scored(ids, start=2)
    [over_http], [in_process] = served.score([scored]), embedded.score([scored])
    np.testing.assert_allclose(over_http.logprobs, in_process.logprobs, atol=1e-5)
    np.testing.assert_allclose(over_http.top_logprobs, in_process.top_logprobs, atol=1e-5)
    part, full = served.distribution(scored), embedded.distribution(scored)
    assert isinstance(part, TopDistribution)
    assert part.top_ids.tolist() == full.top_ids.tolist()
    assert divergence(full, part).max() < 1e-4


def test_prompts_and_answers_equal_those_in_process(
    served: UrlTarget, embedded: EngineTarget
) -> None:
    messages = [{"role": "user", "content": "Name three colours."}]
    prompt = Prompt(embedded.render(messages), max_tokens=12)
    assert served.render(messages) == prompt.token_ids
    [over_http], [in_process] = (t.continue_greedily([prompt]) for t in (served, embedded))
    assert over_http.token_ids == in_process.token_ids
    assert over_http.text == in_process.text


@pytest.mark.parametrize("kind", ["schema", "tool"])
def test_schemas_are_followed_alike(served: UrlTarget, embedded: EngineTarget, kind: Kind) -> None:
    [row] = structured_rows(kind, 1, 0, seed=1)
    prompt = Prompt(embedded.render(row.messages), 48, schema=json.dumps(row.schema))
    [over_http], [in_process] = (t.continue_greedily([prompt]) for t in (served, embedded))
    assert over_http.text == in_process.text
    assert fits(parse(in_process.text), row.schema)


def test_drafts_are_counted_by_servers_and_engines(
    served: UrlTarget, embedded: EngineTarget
) -> None:
    text = "one two three four, " * 12
    for target in (served, embedded):
        before = target.drafts()
        target.continue_greedily([Prompt(target.encode(text), 40, ignore_eos=True)])
        after = target.drafts()
        assert after.num_drafted - before.num_drafted >= after.num_accepted - before.num_accepted
        assert after.num_accepted > before.num_accepted


def test_loads_are_timed_token_by_token(served: UrlTarget) -> None:
    prompts = [Prompt(served.encode("Once upon a time"), 6, ignore_eos=True)] * 3
    timings = served.time_load(prompts, concurrency=2)
    assert len(timings) == 3
    assert all(timing.arrivals_s == sorted(timing.arrivals_s) for timing in timings)
    with pytest.raises(CannotMeasureError, match="prefix cache"):
        served.continue_greedily(prompts, fresh_cache=True)


def test_a_refusal_names_the_url(served: UrlTarget) -> None:
    with pytest.raises(CannotMeasureError, match=r"http://127\.0\.0\.1:\d+ refuses"):
        served.score([Scored((1,) * 600, 1)])


@contextmanager
def fake_server(*, hangs: bool) -> Iterator[str]:
    """Lists a model; answers to completions never come, or break off."""
    gone = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = self.path == "/v1/models"
            body = msgspec.json.encode({"object": "list", "data": [{"id": "m", "object": "model"}]})
            self.send_response(200 if found else 404)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            if hangs and self.path == "/v1/completions":
                gone.wait(20)
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        gone.set()
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize(("hangs", "message"), [(True, "did not answer within"), (False, "http")])
def test_a_server_that_hangs_or_dies_is_an_error(hangs: bool, message: str) -> None:
    with fake_server(hangs=hangs) as url, pytest.raises(TargetError, match=message):
        UrlTarget(url, UrlOptions(timeout_s=0.5))


def test_a_run_over_http_bounds_kl_from_below_and_never_passes_a_dead_server(
    server: ServerProcess, flags: str, tmp_path: Path
) -> None:
    suite = tmp_path / "tiny.toml"
    suite.write_text(SUITE)
    arguments = ["run", str(suite), "--baseline-args", flags, "--store", str(tmp_path / "store")]
    done = CliRunner().invoke(cli, [*arguments, "--candidate", server.url])
    assert done.exit_code == 0, done.output
    [record] = (tmp_path / "store" / "records").glob("*.json")
    assert "a lower bound" in record.read_text()
    dead = CliRunner().invoke(cli, [*arguments, "--candidate", "http://127.0.0.1:9"])
    assert dead.exit_code == 2
    assert len(list((tmp_path / "store" / "records").glob("*.json"))) == 1
