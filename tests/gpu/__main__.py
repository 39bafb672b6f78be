"""`python -m tests.gpu`: run all parts within the time, write the report. See `docs/gpu.md`."""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from pathlib import Path

from tests.gpu import stand_ins

SECONDS = 225.0
CORRECTNESS_SHARE = 0.55
"""Of the time, at most: then what still runs is ended, and speed is measured."""
MAX_PROCESSES = 14


def main(arguments: list[str] | None = None) -> int:
    """Exit status 1 when a part failed, found something wrong or ran out of time."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpu", description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument(
        "--tiny", action="store_true", help="sizes for the interpreter: to see the check work"
    )
    parser.add_argument("--out", type=Path, default=Path("build/gpu-check"))
    parser.add_argument("--seconds", type=float, default=SECONDS, help="time for everything")
    parser.add_argument("--part", action="append", help="only parts whose name contains this")
    given = parser.parse_args(arguments)
    begin = time.monotonic()
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # processes share the cores
    if given.device == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"
    missing = stand_ins.install()
    # Only now: all of these import torch and triton, and the engine its messages.
    import torch
    import triton

    from tests.gpu.parts import correctness, for_tiny, speed
    from tests.gpu.pool import run_alone, run_together
    from tests.gpu.report import write_report
    from tests.gpu.setting import Setting

    given.out.mkdir(parents=True, exist_ok=True)
    setting = Setting(given.device, given.tiny)
    first, second = (
        [
            part
            for part in (for_tiny(parts) if given.tiny else parts)
            if not given.part or any(text in f"{part.group}: {part.name}" for text in given.part)
        ]
        for parts in (correctness(), speed())
    )
    num_processes = max(1, min(MAX_PROCESSES, (os.cpu_count() or 1) - 1))
    findings = run_together(
        first, setting, given.out, num_processes, begin + CORRECTNESS_SHARE * given.seconds
    )
    findings += run_alone(second, setting, given.out, begin + given.seconds)
    facts = {
        "seconds": round(time.monotonic() - begin, 1),
        "device": given.device if given.device == "cpu" else _device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "python": platform.python_version(),
        "stand-ins for": ", ".join(missing) or "nothing",
    }
    write_report(findings, facts, given.out)
    print((given.out / "gpu-check.md").read_text())  # noqa: T201 (a command's output)
    return 0 if all(finding.ok for finding in findings) else 1


def _device_name() -> str:
    import torch

    return torch.cuda.get_device_name()


if __name__ == "__main__":
    sys.exit(main())
