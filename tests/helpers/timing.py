"""How long something takes, as far as a busy machine can tell."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable


def cpu_seconds(work: Callable[[], object], repeat: int = 5) -> float:
    """The thread's own time for `work`, the best of a few, without the garbage collector."""
    gc.collect()
    gc.disable()
    try:
        times = []
        for _ in range(repeat):
            begin = time.thread_time()
            work()
            times.append(time.thread_time() - begin)
        return min(times)
    finally:
        gc.enable()


def assert_linear(work: Callable[[int], object], size: int) -> None:
    """Ten times the size in about ten times the time: far from the hundred of quadratic time."""
    small = cpu_seconds(lambda: work(size))
    assert cpu_seconds(lambda: work(10 * size)) < 40 * small + 0.05
