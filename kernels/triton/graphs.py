"""The body of a program as graphs: captured once per padded number of rows, then replayed.

    rows of a step     1  2  3  4  5 .. 8  9 .. 16  17 .. 24  ...  225 .. 256  257 ..
    rows computed      1  2  4  4    8       16        24             256      as many

A step of a few rows is some hundred launches that take the host longer than the device; a replay is
one. A captured launch gets the same arguments for ever, so what differs between steps of one size
lies in device memory (token ids, positions, slots, tables, the work list of attention), or else is
part of the key. Rows that fill a step up are computed like any other: token 0 at position 0, whose
K and V go to the null block and whom attention leaves out. Long steps, which keep the device busy
anyway, and the head, whose few launches the body hides, are launched one by one.

A size is captured when it comes the second time. The first time its kernels are compiled and
loaded, which a capture forbids; so a server answers at once, and no step captures more than one
graph. Exercised by `pytest tests/cpu/triton/test_graphs.py`.
"""

from __future__ import annotations

from bisect import bisect_left
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from hasten.kernels.triton.machine import Graph, Machine

GRAPH_ROWS: tuple[int, ...] = (1, 2, 4, 8, *range(16, 65, 8), *range(96, 257, 32))
"""The sizes that steps are padded to."""
NUM_VARIANTS = 2
"""Graphs of one size: with and without splits of attention to merge."""
NODE_BYTES = 16 * 1024
"""Device memory that the driver keeps for one launch of a graph, at most; `make gpu-check`
measures it."""


def padded_rows(num_rows: int, capacity: int) -> int | None:
    """So many rows a step of `num_rows` computes as a graph; None where it is none."""
    place = bisect_left(GRAPH_ROWS, num_rows)
    if num_rows == 0 or place == len(GRAPH_ROWS) or GRAPH_ROWS[place] > capacity:
        return None
    return GRAPH_ROWS[place]


def max_graph_bytes(num_kernels: int, capacity: int) -> int:
    """What all graphs of a body of so many kernels take at most."""
    num_sizes = sum(rows <= capacity for rows in GRAPH_ROWS)
    return num_sizes * NUM_VARIANTS * num_kernels * NODE_BYTES


class BodyGraphs:
    """Runs `run_body(num_rows)`, captured where that has been done before."""

    def __init__(self, machine: Machine, run_body: Callable[[int], None]) -> None:
        self._machine = machine
        self._run_body = run_body
        self._graphs: dict[Hashable, Graph | None] = {}

    def run(self, num_rows: int, variant: Hashable) -> None:
        """`variant` is whatever else decides what is launched."""
        key = num_rows, variant
        if key not in self._graphs:
            self._graphs[key] = None
            self._run_body(num_rows)
            return
        graph = self._graphs[key]
        if graph is None:
            graph = self._machine.capture(partial(self._run_body, num_rows))
            self._graphs[key] = graph
        graph.replay()
