"""Runs a program that a model wrote: in a process of its own, with little to break.

Limits: CPU time, wall time, memory, file size (nothing can be written), an empty environment and
working directory, output thrown away, and a system-call filter: no new process or thread, no
socket, no signal to others. Files that the user can read, it can read. This keeps accidents and
clumsy code in; it is not a prison for hostile code, which is why nothing here runs unless the user
asks for it (`--allow-code`). Exercised by `pytest tests/unit/evals/test_sandbox.py`.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import resource
import struct
import subprocess
import sys
import tempfile

CPU_LIMIT_S = 5
WALL_LIMIT_S = 10.0
MEMORY_LIMIT_BYTES = 512 << 20

# Linux's numbers of: clone, fork, vfork, clone3, socket, socketpair, kill, tkill, tgkill, ptrace,
# unlink, unlinkat, rename, renameat, renameat2, rmdir, truncate (where the architecture has them),
# and the architecture's own number. Source: the kernel's system-call tables.
_X86_64 = (0xC000003E, (56, 57, 58, 435, 41, 53, 62, 200, 234, 101, 87, 263, 82, 264, 316, 84, 76))
_AARCH64 = (0xC00000B7, (220, 435, 198, 199, 129, 130, 131, 117, 35, 38, 276, 45))
_FORBIDDEN = {"x86_64": _X86_64, "aarch64": _AARCH64}

_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _SECCOMP_MODE_FILTER = 22, 38, 2
_LOAD_WORD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _KILL, _FAIL = 0x7FFF0000, 0x80000000, 0x00050000 | errno.EPERM


class SandboxError(RuntimeError):
    """The sandbox itself cannot be made on this machine."""


def passes(program: str) -> bool:
    """Whether the Python source runs to its end without an error, within the limits.

    Raises SandboxError when it cannot be run at all.
    """
    instructions = _filter_program()
    with tempfile.TemporaryDirectory(prefix="hasten-evals-") as folder:
        try:
            done = subprocess.run(  # noqa: S603 - the very purpose, behind --allow-code
                [sys.executable, "-I", "-S", "-c", program],
                cwd=folder,
                env={},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=WALL_LIMIT_S,
                preexec_fn=lambda: _lock_down(instructions),
                check=False,
            )
        except subprocess.TimeoutExpired:
            return False
        except subprocess.SubprocessError as error:
            raise SandboxError("the kernel refuses the limits or the filter") from error
    return done.returncode == 0


def _filter_program() -> bytes:
    """A classic BPF program over `struct seccomp_data` {nr, arch, ...}: forbidden calls fail."""
    known = _FORBIDDEN.get(platform.machine())
    if sys.platform != "linux" or known is None:
        raise SandboxError(f"no sandbox on {sys.platform} {platform.machine()}")
    architecture, calls = known
    program = [(_LOAD_WORD, 0, 0, 4), (_JUMP_IF_EQUAL, 1, 0, architecture), (_RETURN, 0, 0, _KILL)]
    program.append((_LOAD_WORD, 0, 0, 0))
    # From instruction i of n, a hit jumps over the remaining comparisons and the "allow".
    program += [(_JUMP_IF_EQUAL, len(calls) - i, 0, call) for i, call in enumerate(calls)]
    program += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _FAIL)]
    return b"".join(struct.pack("HBBI", *instruction) for instruction in program)


def _lock_down(instructions: bytes) -> None:
    """Runs in the child, before the program."""
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_LIMIT_S, CPU_LIMIT_S))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT_BYTES, MEMORY_LIMIT_BYTES))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    code = ctypes.create_string_buffer(instructions, len(instructions))
    header = struct.pack("HxxxxxxP", len(instructions) // 8, ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "no_new_privs")
    if libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, header, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "seccomp")
