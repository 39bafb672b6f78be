"""A decoder run layer by layer computes what the whole step computes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hasten.core.loading import LoadedModel
from hasten.core.models.calibratable import CalibratableDecoder
from hasten.core.prompt_batch import PromptChunk, PromptLayout
from hasten.kernels.backend import get_backend
from hasten.kernels.dtypes import DType
from hasten.kernels.program import Capacity
from hasten.kernels.weights import DenseWeight, F32Array
from hasten.quant.calibration import LinearProducer, Observer, quantize_layer
from hasten.quant.methods import AwqMethod, GptqMethod, NearestMethod
from hasten.quant.rounding import IntGrid

from tests.helpers.random_models import random_model, tiny_config

SEQUENCE_LEN = 40
IDS = np.random.default_rng(3).integers(0, 96, (5, SEQUENCE_LEN)).astype(np.int32)


def whole_hidden(model: LoadedModel) -> F32Array:
    """The hidden states after the last layer, by the body of the recorded step."""
    recorded = model.build_program(DType.F32, DType.F32)
    body, _ = recorded.split()
    program = replace(recorded, ops=list(body), buffers=list(recorded.buffers), taps={})
    names = "residual", "delta"
    for name in names:
        program.tap(name, next(buffer for buffer in program.buffers if buffer.name == name))
    layout = PromptLayout(program.kv_groups, len(IDS), SEQUENCE_LEN)
    backend = get_backend("reference")
    capacity = Capacity(IDS.size, len(IDS), 1, SEQUENCE_LEN)
    step = backend.compile(program, model.weights, backend.allocate_kv(layout.kv_plan()), capacity)
    step.run(layout.batch([PromptChunk(ids) for ids in IDS]))
    return step.tap("residual") + step.tap("delta")


def layered_hidden(model: LoadedModel) -> F32Array:
    decoder = CalibratableDecoder(model, get_backend("reference"), SEQUENCE_LEN)
    hidden = decoder.embed(IDS)
    for layer_idx in range(decoder.num_layers):
        hidden = decoder.run_layer(layer_idx, decoder.weights(layer_idx), hidden).hidden
    return hidden


@pytest.mark.parametrize("windows", [(None, None), (None, 16, None)])
def test_layers_one_by_one_are_the_whole_model(windows: tuple[int | None, ...]) -> None:
    model = random_model(tiny_config(windows=windows))
    np.testing.assert_allclose(layered_hidden(model), whole_hidden(model), rtol=1e-4, atol=1e-4)


def test_observers_see_every_input_of_every_group() -> None:
    model = random_model(tiny_config())
    decoder = CalibratableDecoder(model, get_backend("reference"), SEQUENCE_LEN)
    seen: dict[str, list[F32Array]] = {}
    weights = decoder.weights(0)
    output = decoder.run_layer(
        0, weights, decoder.embed(IDS), lambda name, x: seen.setdefault(name, []).append(x.copy())
    )
    rows = {name: np.concatenate(parts) for name, parts in seen.items()}
    assert {name: x.shape for name, x in rows.items()} == {
        "qkv": (IDS.size, 64),
        "o": (IDS.size, 128),
        "gate_up": (IDS.size, 64),
        "down": (IDS.size, 96),
    }
    gate, up = (
        rows["gate_up"] @ weights[f"model.layers.0.mlp.{name}_proj.weight"].dequantize().T
        for name in ("gate", "up")
    )
    np.testing.assert_allclose(rows["down"], gate / (1 + np.exp(-gate)) * up, rtol=1e-3, atol=1e-4)
    v = rows["qkv"] @ weights["model.layers.0.self_attn.v_proj.weight"].dequantize().T
    assert output.largest_v == pytest.approx(np.abs(v).max(), rel=1e-4)


def first_rows(into: dict[str, F32Array]) -> Observer:
    def observe(name: str, rows: F32Array) -> None:
        into.setdefault(name, rows.copy())

    return observe


def test_dividing_a_producer_divides_what_it_produces() -> None:
    model = random_model(tiny_config())
    decoder = CalibratableDecoder(model, get_backend("reference"), SEQUENCE_LEN)
    weights, hidden = decoder.weights(0), decoder.embed(IDS)
    plain: dict[str, F32Array] = {}
    divided: dict[str, F32Array] = {}
    decoder.run_layer(0, weights, hidden, first_rows(plain))
    for group in decoder.groups(0):
        producer = group.producer
        if not isinstance(producer, LinearProducer):
            continue
        scale = np.random.default_rng(1).uniform(0.5, 2, weights[producer.matrix].shape[0])
        changed = weights[producer.matrix].dequantize() / scale[:, None].astype(np.float32)
        divided.clear()
        decoder.run_layer(
            0,
            {**weights, producer.matrix: DenseWeight(changed)},
            hidden,
            first_rows(divided),
        )
        expected = plain[group.name] / scale[producer.rows]
        np.testing.assert_allclose(divided[group.name], expected, rtol=2e-3, atol=1e-4)


@pytest.mark.parametrize("method", [NearestMethod, AwqMethod, GptqMethod])
def test_methods_quantise_whole_layers(
    method: type[NearestMethod | AwqMethod | GptqMethod],
) -> None:
    model = random_model(tiny_config())
    decoder = CalibratableDecoder(model, get_backend("reference"), SEQUENCE_LEN)
    done = quantize_layer(decoder, 0, decoder.embed(IDS), method(IntGrid(8, 32, symmetric=False)))
    assert 0 < done.relative_error < 0.02
    assert set(done.weights) == set(decoder.weights(0))
