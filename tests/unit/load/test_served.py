"""Servers as children: ready when they answer, weighed, named when they fail, gone after."""

from __future__ import annotations

import sys

import psutil
import pytest
from hasten.evals.load.errors import LoadError
from hasten.evals.load.served import PORT, ServerCommand, served

ANSWERING = (sys.executable, "-m", "http.server", "--bind", "127.0.0.1", PORT)


def test_a_server_is_weighed_and_ends_with_the_block() -> None:
    with served(ServerCommand(ANSWERING, ready_path="/")) as server:
        assert server.ready_s > 0
        assert server.resident_bytes() > 1_000_000
        number = server.process.pid
    assert not psutil.pid_exists(number)


def test_a_server_that_ends_is_quoted() -> None:
    command = (sys.executable, "-c", "print('no such model'); raise SystemExit(2)")
    failing = pytest.raises(LoadError, match="ended with code 2: no such model")
    with failing, served(ServerCommand(command)):
        pass


def test_a_server_that_never_answers_is_ended() -> None:
    before = psutil.Process().children()
    silent = (sys.executable, "-c", "import time; time.sleep(60)")
    failing = pytest.raises(LoadError, match="was not ready after 0 s: it printed nothing")
    with failing, served(ServerCommand(silent), timeout_s=0.2):
        pass
    assert psutil.Process().children() == before
