"""Cases of the ops that only some families of models have: experts, other norms, scaled sums."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from hasten.kernels import ops
from hasten.kernels.conformance import oracles
from hasten.kernels.conformance.cases import (
    NUM_ROWS,
    OUT,
    ActivationGroup,
    Case,
    Recorder,
    expected_product,
)
from hasten.kernels.conformance.oracles import F64, rounded
from hasten.kernels.dtypes import DType
from hasten.kernels.program import Buffer, WeightName
from hasten.kernels.small_floats import as_e4m3
from hasten.kernels.weights import (
    DenseWeight,
    Fp8Weight,
    GroupedIntWeight,
    StackedWeight,
    Weight,
)

NUM_EXPERTS = 6


def family_cases(dtype: DType, activation_group: ActivationGroup) -> Iterator[Case]:
    """Every case in one activation dtype."""
    yield from _norm_columns_cases(dtype)
    yield from _add_scaled_cases(dtype)
    yield from _scale_logits_cases(dtype)
    yield from _route_cases(dtype)
    yield from _grouped_linear_cases(dtype, activation_group)
    yield from _combine_cases(dtype)


def _norm_columns_cases(dtype: DType) -> Iterator[Case]:
    for width, start, stop in ((1, 0, 1), (65, 3, 40), (192, 64, 192)):
        recorder = Recorder(dtype)
        x, values = recorder.operand("x", width)
        gain = rounded(recorder.rng.uniform(0.5, 2.0, stop - start), dtype)
        weight = recorder.weight("gain", gain)
        recorder.program.add(ops.NormColumns(x, weight, start, stop, 1e-5))
        expected = values.copy()
        expected[:, start:stop] = oracles.rms_norm(values[:, start:stop], gain, 1e-5)
        yield recorder.case(f"columns {start} to {stop} of {width}", x, expected)


def _add_scaled_cases(dtype: DType) -> Iterator[Case]:
    for width, scale in ((1, 1.0), (67, 0.22), (576, 1.0)):
        recorder = Recorder(dtype)
        x, added = recorder.operand("x", width)
        out, base = recorder.operand(OUT, width, spread=4.0)
        recorder.program.add(ops.AddScaled(x, out, scale))
        yield recorder.case(f"width {width}, scale {scale:g}", out, base + scale * added)


def _scale_logits_cases(dtype: DType) -> Iterator[Case]:
    for width, scale, softcap in ((1, 0.5, None), (67, 1.0, 30.0), (257, 0.125, 5.0)):
        recorder = Recorder(dtype)
        logits, values = recorder.operand("logits", width, spread=20.0)
        recorder.program.add(ops.ScaleLogits(logits, scale, softcap))
        expected = values * scale
        if softcap is not None:
            expected = softcap * np.tanh(expected / softcap)
        name = f"width {width}, scale {scale:g}, softcap {softcap}"
        yield recorder.case(name, logits, expected)


def _route_cases(dtype: DType) -> Iterator[Case]:
    for count, active, renormalize in ((1, 1, False), (8, 2, True), (65, 5, False)):
        recorder = Recorder(dtype)
        logits, values = recorder.operand("logits", count, spread=2.0)
        out = recorder.buffer(OUT, 2 * active)
        recorder.program.add(ops.Route(logits, out, active, renormalize))
        name = f"{active} of {count}{', renormalised' if renormalize else ''}"
        yield recorder.case(name, out, _routes(values, active, renormalize))


def _routes(logits: F64, num_active: int, renormalize: bool) -> F64:
    likely = np.exp(logits - logits.max(axis=1, keepdims=True))
    ids = np.argsort(-logits, axis=1, kind="stable")[:, :num_active]
    weights = np.take_along_axis(likely / likely.sum(axis=1, keepdims=True), ids, axis=1)
    if renormalize:
        weights = weights / weights.sum(axis=1, keepdims=True)
    return np.concatenate([ids, weights], axis=1)


def _grouped_linear_cases(dtype: DType, activation_group: ActivationGroup) -> Iterator[Case]:
    for active, num_parts, width, part_width in ((1, 1, 32, 5), (2, 2, 64, 33), (3, 1, 96, 64)):
        for kind in ("dense", "int4", "fp8", "unlike"):
            recorder = Recorder(dtype)
            shape = (NUM_EXPERTS * num_parts * part_width, width)
            weight = _experts_weight(recorder.rng, kind, shape, num_parts * part_width)
            name = f"{active} of {NUM_EXPERTS} experts, {num_parts} parts, {kind}"
            layout = (active, num_parts)
            yield _grouped_linear_case(recorder, name, weight, layout, activation_group)


def _grouped_linear_case(
    recorder: Recorder,
    name: str,
    weight: Weight,
    layout: tuple[int, int],
    activation_group: ActivationGroup,
) -> Case:
    num_active, num_parts = layout
    num_rows, width = weight.shape
    is_shared = num_parts > 1
    x, values = recorder.operand("x", width if is_shared else num_active * width)
    routing, ids, _ = _routing(recorder, num_active)
    recorder.weights[WeightName("weight")] = weight
    out = recorder.buffer(OUT, num_active * num_rows // NUM_EXPERTS)
    recorder.program.add(
        ops.GroupedLinear(x, routing, WeightName("weight"), out, NUM_EXPERTS, num_active, num_parts)
    )
    inputs = np.broadcast_to(values.reshape(NUM_ROWS, -1, width), (NUM_ROWS, num_active, width))
    # What every expert makes of every input, [experts, rows, active, outputs]; then the chosen.
    of_all, allowance = zip(
        *(
            expected_product(
                inputs.reshape(-1, width),
                weight.take_rows(slice(begin, begin + num_rows // NUM_EXPERTS)),
                recorder.dtype,
                activation_group,
            )
            for begin in range(0, num_rows, num_rows // NUM_EXPERTS)
        ),
        strict=True,
    )
    chosen = np.stack(of_all).reshape(NUM_EXPERTS, NUM_ROWS, num_active, num_parts, -1)
    rows, ranks = np.indices(ids.shape)
    products = chosen[ids, rows, ranks].transpose(0, 2, 1, 3)
    return recorder.case(name, out, products.reshape(NUM_ROWS, -1), allowance=max(allowance))


def _experts_weight(
    rng: np.random.Generator, kind: str, shape: tuple[int, int], rows_per_expert: int
) -> Weight:
    values = (rng.standard_normal(shape) / np.sqrt(shape[1])).astype(np.float32)
    if kind == "dense":
        return DenseWeight(values)
    if kind == "fp8":
        codes = as_e4m3(400 * values / np.abs(values).max())
        scale = rng.uniform(0.001, 0.002, (shape[0], 1)).astype(np.float32)
        return Fp8Weight(codes, scale, (1, shape[1]))
    q = rng.integers(0, 256, (shape[0], shape[1] // 2), dtype=np.uint8)
    scale = rng.uniform(0.01, 0.03, (shape[0], shape[1] // 32)).astype(np.float32)
    packed = GroupedIntWeight(4, 32, q, scale, -8 * scale)
    if kind == "int4":
        return packed
    cut = 2 * rows_per_expert
    return StackedWeight((DenseWeight(values[:cut]), packed.take_rows(slice(cut, None))))


def _combine_cases(dtype: DType) -> Iterator[Case]:
    for active, width in ((1, 1), (2, 33), (5, 64)):
        recorder = Recorder(dtype)
        x, values = recorder.operand("x", active * width)
        routing, _, weights = _routing(recorder, active)
        out = recorder.buffer(OUT, width)
        recorder.program.add(ops.CombineExperts(x, routing, out))
        outputs = values.reshape(NUM_ROWS, active, width)
        expected = np.einsum("ta,taw->tw", weights, outputs)
        yield recorder.case(f"{active} experts, width {width}", out, expected)


def _routing(recorder: Recorder, num_active: int) -> tuple[Buffer, npt.NDArray[np.intp], F64]:
    """A buffer of random routes, and the ids and weights that it holds."""
    rng = recorder.rng
    ids = np.argsort(rng.random((NUM_ROWS, NUM_EXPERTS)), axis=1)[:, :num_active]
    weights = rounded(rng.uniform(0.1, 1.0, (NUM_ROWS, num_active)), recorder.dtype)
    table = np.concatenate([np.concatenate([ids, weights], axis=1), np.zeros((1, 2 * num_active))])
    buffer = recorder.buffer("routing", 2 * num_active)
    recorder.program.add(ops.Embed(recorder.weight("routing.table", table), buffer))
    return buffer, ids, weights
