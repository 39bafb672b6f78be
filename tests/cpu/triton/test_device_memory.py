"""On a device with memory of its own, that is what the plan divides, graphs included."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
import torch
from hasten.core.binding import ModelBinding
from hasten.core.demand import settle_memory
from hasten.core.memory import MIB
from hasten.core.options import EngineOptions, ModelOptions
from hasten.kernels.backend import BoundBytes, KVPlan
from hasten.kernels.dtypes import DType
from hasten.kernels.program import Capacity, WeightName
from hasten.kernels.triton.backend import TritonBackend
from hasten.kernels.triton.binding import Binder
from hasten.kernels.triton.kv_cache import TritonKVCache
from hasten.kernels.triton.linear import bind_matrices
from hasten.kernels.weights import GroupedIntWeight

from tests.helpers.random_models import random_model, tiny_config
from tests.helpers.recording_machine import RecordingMachine

FREE_BYTES = 8 * 2**30


@pytest.fixture
def binding(monkeypatch: pytest.MonkeyPatch) -> ModelBinding:
    """A tiny model on a device with 8 GiB free, which captures graphs."""
    machine = RecordingMachine()
    backend = TritonBackend("cpu", launcher=machine.launch, machine=machine)
    monkeypatch.setattr(backend, "free_memory_bytes", lambda: FREE_BYTES)
    model = random_model(tiny_config())
    kv_format = model.kv_format(DType.BF16)
    program = model.build_program(DType.BF16, kv_format)
    return ModelBinding(model, backend, DType.BF16, kv_format, program)


def test_weights_are_counted_as_kernels_read_them() -> None:
    """Scales and offsets of integers as fp32; what several ops read, once."""
    meta, backend = torch.device("meta"), TritonBackend("meta")
    name = WeightName("w")
    halves = np.ones((256, 4), np.float16)
    weight = GroupedIntWeight(4, 32, np.zeros((256, 64), np.uint8), halves, halves)
    cache = TritonKVCache(KVPlan((), (), 16), meta)
    binder = Binder(
        {name: weight},
        cache,
        Capacity(8, 4, 4, 64),
        meta,
        1,
        backend.table,
        has_fp8=True,
        num_programs=1,
    )
    for _ in range(2):
        bind_matrices(name, binder)
    assert binder.bound_bytes == BoundBytes(weights=256 * 64 + 2 * 4 * 256 * 4, work=0)
    assert weight.num_bytes == 256 * 64 + 2 * 2 * 256 * 4


def test_graphs_and_scratch_are_planned(binding: ModelBinding) -> None:
    plan = settle_memory(binding, EngineOptions(model=ModelOptions(max_model_len=512)))
    backend = binding.backend
    assert isinstance(backend, TritonBackend)
    config, shapes = tiny_config(), [weight.shape for weight in binding.model.weights.values()]
    matrices = sum(2 * prod(shape) for shape in shapes if len(shape) == 2)
    vectors = sum(4 * prod(shape) for shape in shapes if len(shape) == 1)
    wide_embedding = 2 * config.vocab_size * config.hidden_size  # fp32, as it is in this model
    angles = 4 * 512 * config.head_size
    assert plan.weights_bytes == matrices + vectors + wide_embedding + angles
    assert plan.graph_bytes > MIB
    assert plan.activation_bytes > MIB
    assert any(line.startswith("graphs ") for line in plan.lines())
    used = plan.weights_bytes + plan.activation_bytes + plan.graph_bytes + plan.kv_bytes
    assert used <= 0.9 * FREE_BYTES
