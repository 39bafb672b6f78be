"""Filling the launch table on a GPU: every product's fastest tile, measured.

For each kind of weight and row class, the candidates are timed on the shapes of a model and the one
with the least total time wins. A candidate that does not compile, or that needs more registers or
shared memory than there are, is out. Bits do not depend on the choice (see `products`), so tuning
changes speed only.

`hasten check --tune` runs it where there is a GPU. Exercised by `pytest tests/cpu/triton`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from hasten.kernels import ops
from hasten.kernels.backend import KVPlan
from hasten.kernels.dtypes import DType
from hasten.kernels.program import Capacity, Program, Rows, WeightName
from hasten.kernels.triton.check.shapes import MODELS, make_matrix
from hasten.kernels.triton.launch import ROW_CLASSES, LaunchConfig, LaunchTable

if TYPE_CHECKING:
    from hasten.kernels.triton.backend import TritonBackend

SCHEMES = {"dense": "bf16", "packed": "int4", "fp8": "fp8", "fp8_group": "fp8-block"}
"""The scheme of `check.shapes` that stands for each kind of weight."""
MODEL = "Llama-3-8B"
NUM_ROWS = {"few": 16, "some": 64, "many": 2048}
NUM_REPEATS = 20

Measure = Callable[[str, str, LaunchConfig], float]
"""(kind, row class, configuration) to seconds; infinite where it does not run."""


def candidates(kind: str, name: str) -> Iterator[LaunchConfig]:
    """The configurations to try for one kind of weight and row class."""
    heights = (64,) if name == "few" else (64, 128)
    rows = (min(ROW_CLASSES[name], 64),) if name != "many" else (64, 128)
    inputs = (64, 128) if kind == "dense" else (128,)
    for block_rows in rows:
        for block_out in heights:
            for block_in in inputs:
                for num_warps in (4, 8):
                    for num_stages in (2, 3, 4, 5):
                        yield LaunchConfig(block_rows, block_out, block_in, num_warps, num_stages)


def tune(
    table: LaunchTable, measure: Measure, progress: Callable[[str], None] = lambda _: None
) -> LaunchTable:
    """The table with the fastest candidate for each product; what was there wins ties."""
    entries = dict(table.entries)
    for kind in SCHEMES:
        for name in ROW_CLASSES:
            entry = f"{kind}/{name}"
            if entry not in entries:
                continue
            choices = [entries[entry], *candidates(kind, name)]
            times = [measure(kind, name, config) for config in choices]
            entries[entry] = choices[times.index(min(times))]
            progress(f"{entry}: {times[0] * 1e6:.0f} to {min(times) * 1e6:.0f} microseconds")
    return LaunchTable(table.arch, entries)


def measure_on(backend: TritonBackend) -> Measure:
    """Times the products of one layer of `MODEL` on the backend's device."""

    def measure(kind: str, name: str, config: LaunchConfig) -> float:
        before = backend.table
        backend.table = LaunchTable(before.arch, {**before.entries, f"{kind}/{name}": config})
        try:
            return sum(
                _time_product(backend, SCHEMES[kind], out, width, NUM_ROWS[name])
                for out, width in _layer_shapes()
            )
        except Exception:  # noqa: BLE001 (a candidate that the compiler or the device refuses)
            return float("inf")
        finally:
            backend.table = before

    return measure


def _layer_shapes() -> Sequence[tuple[int, int]]:
    """(outputs, inputs) of a layer's products."""
    shape = MODELS[MODEL]
    heads = shape.num_heads * shape.head_size
    qkv = heads + 2 * shape.num_kv_heads * shape.head_size
    return (
        (qkv, shape.hidden),
        (shape.hidden, heads),
        (2 * shape.mlp, shape.hidden),
        (shape.hidden, shape.mlp),
    )


def _time_product(
    backend: TritonBackend, scheme: str, out: int, width: int, num_rows: int
) -> float:
    """Seconds of one product, the median of several runs on cold weights."""
    program = Program(1, ())
    x = program.buffer("x", Rows.TOKENS, width, DType.BF16)
    result = program.buffer("out", Rows.TOKENS, out, DType.BF16)
    name = WeightName("weight")
    program.add(ops.Linear(x, name, result))
    weight = make_matrix(scheme, out, width, MODELS[MODEL].int4_group)
    cache = backend.allocate_kv(KVPlan((), (), 16))
    executable = backend.compile(program, {name: weight}, cache, Capacity(num_rows, 1, 1, num_rows))
    flush = torch.empty(1 << 28, dtype=torch.uint8, device=backend.device)
    executable.run_body(num_rows)
    events = []
    for _ in range(NUM_REPEATS):
        flush.zero_()  # larger than the cache, so that weights come from memory as they do in use
        start, stop = (_event() for _ in range(2))
        start.record()
        executable.run_body(num_rows)
        stop.record()
        events.append((start, stop))
    torch.cuda.synchronize()
    times = sorted(start.elapsed_time(stop) for start, stop in events)
    return float(times[len(times) // 2]) / 1000


def _event() -> torch.cuda.Event:
    event: torch.cuda.Event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch's
    return event
