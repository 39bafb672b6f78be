"""On a device with memory of its own, that is what the plan divides, graphs included."""

from __future__ import annotations

import pytest
from hasten.core.build import ModelBinding, settle_memory
from hasten.core.memory import MIB
from hasten.core.options import EngineOptions, ModelOptions
from hasten.kernels.dtypes import DType
from hasten.kernels.triton.backend import TritonBackend

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


def test_graphs_and_scratch_are_planned(binding: ModelBinding) -> None:
    plan = settle_memory(binding, EngineOptions(model=ModelOptions(max_model_len=512)))
    backend = binding.backend
    assert isinstance(backend, TritonBackend)
    assert plan.graph_bytes > MIB
    assert plan.activation_bytes > MIB
    assert any(line.startswith("graphs ") for line in plan.lines())
    used = plan.weights_bytes + plan.activation_bytes + plan.graph_bytes + plan.kv_bytes
    assert used <= 0.9 * FREE_BYTES
