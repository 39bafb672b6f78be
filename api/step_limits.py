"""How near a step comes to what the machine can do: its least work over measured limits.

A step can be bound by memory (the weights and the cache that it must read) or by arithmetic; the
share of each limit is work / (seconds x limit). Small models may exceed the first where a cache
holds their weights, and int4 weights the second, as their kernels take two products from one
multiplication. Exercised by `pytest tests/cpu/api/test_engine_bench.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from hasten.core.binding import ModelBinding
from hasten.core.step_work import WorkCounter
from hasten.kernels.cpu import CpuBackend
from hasten.kernels.cpu.limits import MachineLimits, measure_limits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hasten.core.latency import Chunk
    from hasten.core.options import EngineOptions


class LimitShares(msgspec.Struct, frozen=True):
    """The least work of a step, and what shares of the machine's limits its time makes of it."""

    num_bytes: float
    multiply_adds: float
    of_bandwidth: float
    of_multiply_adds: float


class StepLimits:
    """Knows the machine's limits and the work of an engine's steps."""

    def __init__(self, machine: MachineLimits, work: WorkCounter) -> None:
        self.machine = machine
        self._work = work

    @classmethod
    def measure(cls, options: EngineOptions) -> StepLimits | None:
        """For an engine of these options; None where limits or work are not known.

        Takes about a second. Raises what `ModelBinding.load` raises.
        """
        binding = ModelBinding.load(options)
        backend = binding.backend
        if not isinstance(backend, CpuBackend) or binding.drafters:
            return None
        weights, block_size = binding.model.weights, options.cache.block_size
        work = WorkCounter(
            binding.program,
            weights,
            lambda op: backend.weight_bytes(op, weights),
            lambda spec: backend.kv_block_bytes(spec, block_size) / block_size / spec.num_layers,
        )
        return cls(measure_limits(backend), work)

    def shares(self, chunks: Sequence[Chunk], seconds: float) -> LimitShares:
        """Of a step that computed `chunks` in `seconds`."""
        work = self._work.count(chunks)
        return LimitShares(
            num_bytes=work.num_bytes,
            multiply_adds=work.multiply_adds,
            of_bandwidth=work.num_bytes / seconds / self.machine.bytes_per_s,
            of_multiply_adds=work.multiply_adds / seconds / self.machine.multiply_adds_per_s,
        )
