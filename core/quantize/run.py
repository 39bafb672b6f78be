"""Quantising a model from end to end: one layer's weights in memory at a time, resumable.

The hidden states of all calibration tokens stay in memory; a resumed run gets them back by running
the finished layers as they are stored. Exercised by `pytest tests/cpu/quant/test_quantize.py`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
from hasten.core.loading import load_model
from hasten.core.loading.fields import read_json_object
from hasten.core.loading.hf_export import export_config
from hasten.core.models import weight_specs
from hasten.core.models.calibratable import CalibratableDecoder
from hasten.core.options import ConfigurationError
from hasten.core.quantize.compare import bf16_layer_bytes
from hasten.core.quantize.folder import QuantizeFolder, copy_companions
from hasten.core.quantize.plan import QuantizePlan, make_plan
from hasten.kernels.backend import get_backend
from hasten.kernels.weights import DenseWeight, Matrix
from hasten.quant.calibration import QuantizedLayer, quantize_layer
from hasten.quant.fp8 import E4M3_MAX
from hasten.quant.report import LayerReport, QuantizeReport
from ml_dtypes import bfloat16

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt
    from hasten.core.loading import LoadedModel
    from hasten.core.quantize.options import QuantizeOptions
    from hasten.kernels.weights import F32Array

Arrays = dict[str, "npt.NDArray[Any]"]


def quantize_model(
    reference: str,
    out: Path,
    options: QuantizeOptions,
    token_ids: npt.NDArray[np.int32],
    on_layer: Callable[[LayerReport], None] = lambda _: None,
) -> QuantizeReport:
    """Quantise the model `reference` into the directory `out`.

    `token_ids` [num_sequences, sequence_len] are the calibration tokens. `on_layer` is called for
    every layer, those of an earlier run included. Raises LoadError, and ConfigurationError for
    options that contradict the model or what the directory holds.
    """
    model = load_model(reference)
    plan = make_plan(options, model.config)
    decoder = CalibratableDecoder(model, get_backend("reference"), token_ids.shape[1])
    folder = QuantizeFolder(out, _run_key(options, model, token_ids))
    num_finished = folder.num_finished(decoder.num_layers)
    hidden = decoder.embed(token_ids)
    reports = []
    for layer_idx in range(decoder.num_layers):
        if layer_idx < num_finished:
            weights = folder.read_layer(layer_idx, plan.format)
            hidden = decoder.run_layer(layer_idx, weights, hidden).hidden
            reports.append(folder.layer_report(layer_idx))
        else:
            finished, hidden = _quantize_layer(decoder, layer_idx, hidden, plan, folder)
            reports.append(finished)
        on_layer(reports[-1])
    report = QuantizeReport(
        scheme=options.scheme,
        group_size=plan.group_size,
        num_calibration_tokens=token_ids.size,
        bf16_bytes=bf16_layer_bytes(model.config),
        quantized_bytes=sum(folder.layer_bytes(idx) for idx in range(decoder.num_layers)),
        layers=tuple(reports),
    )
    config = {**_source_config(model), "quantization_config": plan.format.config()}
    folder.finish(config, _other_tensors(model), report)
    if model.info.path.is_dir():
        copy_companions(model.info.path, out)
    return report


def _quantize_layer(
    decoder: CalibratableDecoder,
    layer_idx: int,
    hidden: F32Array,
    plan: QuantizePlan,
    folder: QuantizeFolder,
) -> tuple[LayerReport, F32Array]:
    begin = perf_counter()
    try:
        done = quantize_layer(decoder, layer_idx, hidden, plan.method)
        tensors = _layer_tensors(done, plan, layer_idx)
    except ValueError as error:
        raise ConfigurationError(f"layer {layer_idx}: {error}") from error
    report = LayerReport(
        layer_idx,
        done.relative_error,
        perf_counter() - begin,
        done.output.largest_k,
        done.output.largest_v,
    )
    folder.write_layer(report, tensors)
    return report, done.output.hidden


def _layer_tensors(done: QuantizedLayer, plan: QuantizePlan, layer_idx: int) -> Arrays:
    tensors: Arrays = {}
    for name, weight in done.weights.items():
        if isinstance(weight, DenseWeight):
            tensors[name] = weight.data
        else:
            tensors.update(plan.format.write(name.removesuffix(".weight"), weight))
    if plan.static_kv:
        attention = f"model.layers.{layer_idx}.self_attn"
        tensors[f"{attention}.k_scale"] = _cache_scale(done.output.largest_k)
        tensors[f"{attention}.v_scale"] = _cache_scale(done.output.largest_v)
    return tensors


def _cache_scale(largest: float) -> npt.NDArray[Any]:
    return np.array([largest / E4M3_MAX if largest > 0 else 1.0]).astype(bfloat16)


def _source_config(model: LoadedModel) -> dict[str, Any]:
    """The model's own config.json, or one made from a GGUF file's metadata."""
    if model.info.path.is_dir():
        return read_json_object(model.info.path / "config.json")
    return export_config(model.config, model.eos_token_ids)


def _other_tensors(model: LoadedModel) -> Arrays:
    """What belongs to no layer, as it is; a table that the file holds quantised becomes bf16."""
    tensors: Arrays = {}
    for spec in weight_specs(model.config):
        if not spec.name.startswith("layers."):
            weight = model.weights[spec.name]
            assert isinstance(weight, Matrix)
            stored = (
                weight.data
                if isinstance(weight, DenseWeight)
                else weight.dequantize().astype(bfloat16)
            )
            tensors[spec.parts[0].key] = stored
    return tensors


def _run_key(options: QuantizeOptions, model: LoadedModel, token_ids: npt.NDArray[np.int32]) -> str:
    """Everything that decides what is written."""
    text = json.dumps([asdict(options), model.content_hash], sort_keys=True).encode()
    return hashlib.sha256(text + token_ids.tobytes()).hexdigest()
