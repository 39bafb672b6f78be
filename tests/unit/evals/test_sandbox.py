from __future__ import annotations

import platform
import sys
from pathlib import Path

import pytest
from hasten.evals.tasks import sandbox

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"),
    reason="the sandbox is Linux's on x86-64 and aarch64",
)


@pytest.mark.parametrize(
    "program", ["x = 1", "import math\nassert math.sqrt(4) == 2", "print('x')"]
)
def test_sound_programs_pass(program: str) -> None:
    assert sandbox.passes(program)


@pytest.mark.parametrize(
    "program",
    [
        "assert 1 == 2",
        "raise SystemExit(3)",
        "import os; os.fork()",
        "import subprocess; subprocess.run(['true'])",
        "import threading; threading.Thread(target=print).start()",
        "import socket; socket.socket()",
        "import os; os.kill(os.getppid(), 0)",
        "x = 'a' * (1 << 30)",
        "f = open('out', 'w'); f.write('a' * 10); f.flush()",
    ],
)
def test_programs_that_fail_or_reach_out_do_not(program: str) -> None:
    assert not sandbox.passes(program)


def test_a_program_cannot_delete_what_the_user_could(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("still here")
    assert not sandbox.passes(f"import os; os.remove({str(victim)!r})")
    assert victim.read_text() == "still here"


def test_an_endless_loop_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "CPU_LIMIT_S", 1)
    assert not sandbox.passes("while True: pass")


def test_an_unknown_machine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "pdp11")
    with pytest.raises(sandbox.SandboxError, match="no sandbox on linux pdp11"):
        sandbox.passes("x = 1")
