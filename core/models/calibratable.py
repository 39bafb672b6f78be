"""A decoder as calibration sees it: one layer at a time, run on hidden states by the reference ops.

Each layer is cut out of the recorded step (`layer_program`) and run over whole sequences in fp32,
so calibration computes what serving does and knows no architecture of its own. Exercised by
`pytest tests/cpu/quant/test_calibratable.py`.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from hasten.core.models.config import DecoderConfig
from hasten.core.models.layers import DELTA, ENTERING, INPUTS, RESIDUAL, ROTATED, layer_program
from hasten.core.models.weights import EMBED, WeightSpec, layer_weight, weight_specs
from hasten.core.prompt_batch import PromptChunk, PromptLayout
from hasten.kernels.dtypes import DType
from hasten.kernels.program import Capacity, WeightName
from hasten.kernels.weights import DenseWeight, F32Array, Matrix, Weight, stack
from hasten.quant.calibration import (
    LayerOutput,
    LinearGroup,
    LinearProducer,
    NormProducer,
    Observer,
    Producer,
    Weights,
)

if TYPE_CHECKING:
    import numpy.typing as npt
    from hasten.core.loading import LoadedModel
    from hasten.kernels.backend import Backend, Executable

STEP_TOKENS = 2048
"""Tokens computed at once: bounds what the taps hold."""


class CalibratableDecoder:
    """`CalibratableModel` over sequences of `sequence_len` tokens, laid end to end."""

    def __init__(self, model: LoadedModel, backend: Backend, sequence_len: int) -> None:
        """Raises ValueError for families whose blocks calibration does not know."""
        _refuse_unknown_blocks(model.config)
        self._model = model
        self._config = model.config
        self._backend = backend
        self._sequence_len = sequence_len
        self._program = model.build_program(DType.F32, DType.F32)
        self._specs = list(weight_specs(model.config))

    @property
    def num_layers(self) -> int:
        return self._config.num_layers

    def embed(self, token_ids: npt.NDArray[np.int32]) -> F32Array:
        """The hidden states of tokens [num_sequences, sequence_len]: [num_tokens, hidden]."""
        table = self._model.weights[EMBED]
        assert isinstance(table, Matrix)
        return table.take_rows(token_ids.reshape(-1).astype(np.intp)).dequantize()

    def groups(self, layer_idx: int) -> tuple[LinearGroup, ...]:
        found = []
        for spec in self._layer_specs(layer_idx):
            if spec.quantizable:
                name = spec.name.rpartition(".")[2]
                keys = tuple(part.key for part in spec.parts)
                found.append(LinearGroup(name, keys, self._producer(layer_idx, name)))
        return tuple(found)

    def weights(self, layer_idx: int) -> Weights:
        found: Weights = {}
        for spec in self._layer_specs(layer_idx):
            found.update(_split(spec, self._model.weights[spec.name]))
        return found

    def run_layer(
        self,
        layer_idx: int,
        weights: Mapping[str, Matrix],
        hidden: F32Array,
        observe: Observer | None = None,
    ) -> LayerOutput:
        bound: dict[WeightName, Weight] = {
            spec.name: _joined(spec, weights) for spec in self._layer_specs(layer_idx)
        }
        bound[ENTERING] = DenseWeight(hidden)
        leaving = np.empty_like(hidden)
        largest_k = largest_v = 0.0
        for start, stop, step in self._run(layer_idx, bound, len(hidden)):
            leaving[start:stop] = step.tap(RESIDUAL) + step.tap(DELTA)
            k, v = self._cached(step.tap(ROTATED))
            largest_k = max(largest_k, float(np.abs(k).max()))
            largest_v = max(largest_v, float(np.abs(v).max()))
            if observe is not None:
                for group in self.groups(layer_idx):
                    observe(group.name, step.tap(INPUTS + group.name))
        return LayerOutput(leaving, largest_k, largest_v)

    def _run(
        self, layer_idx: int, bound: Mapping[WeightName, Weight], num_tokens: int
    ) -> Iterator[tuple[int, int, Executable]]:
        """Run the layer over all tokens; yields which of them, and the taps, after every step."""
        program = layer_program(self._program, layer_idx)
        num_requests = max(1, STEP_TOKENS // self._sequence_len)
        layout = PromptLayout(program.kv_groups, num_requests, self._sequence_len)
        capacity = Capacity(num_requests * self._sequence_len, num_requests, 1, self._sequence_len)
        cache = self._backend.allocate_kv(layout.kv_plan())
        executable = self._backend.compile(program, bound, cache, capacity)
        ids = np.arange(num_tokens, dtype=np.int32).reshape(-1, self._sequence_len)
        for first in range(0, len(ids), num_requests):
            chosen = ids[first : first + num_requests]
            executable.run(layout.batch([PromptChunk(row) for row in chosen]))
            yield int(chosen[0, 0]), int(chosen[-1, -1]) + 1, executable
        # What an executable holds may refer back to it: uncollected, layers would pile up.
        del executable, cache
        gc.collect()

    def _cached(self, rotated: F32Array) -> tuple[F32Array, F32Array]:
        """K and V of q | k | v."""
        q, kv = self._config.q_width, self._config.kv_width
        return rotated[:, q : q + kv], rotated[:, q + kv :]

    def _layer_specs(self, layer_idx: int) -> list[WeightSpec]:
        prefix = layer_weight(layer_idx, "")
        return [spec for spec in self._specs if spec.name.startswith(prefix)]

    def _producer(self, layer_idx: int, group: str) -> Producer:
        config = self._config
        layer = f"model.layers.{layer_idx}"
        if group == "qkv":
            return NormProducer(f"{layer}.input_layernorm.weight")
        if group == "gate_up":
            return NormProducer(f"{layer}.post_attention_layernorm.weight")
        if group == "down":
            bias = f"{layer}.mlp.up_proj.bias" if config.mlp_bias else None
            rows = np.arange(config.intermediate_size)
            return LinearProducer(f"{layer}.mlp.up_proj.weight", bias, rows)
        assert group == "o"
        bias = f"{layer}.self_attn.v_proj.bias" if config.qkv_bias else None
        heads = np.arange(config.num_heads) // (config.num_heads // config.num_kv_heads)
        rows = (heads[:, None] * config.head_size + np.arange(config.head_size)).reshape(-1)
        return LinearProducer(f"{layer}.self_attn.v_proj.weight", bias, rows)


def _refuse_unknown_blocks(config: DecoderConfig) -> None:
    """Raise ValueError unless each block is a norm and linears of its own, as in Llama."""
    plain = DecoderConfig.__dataclass_fields__
    for field in (
        "norms",
        "norm_offset",
        "joint_qk_norm",
        "fused_projections",
        "experts",
        "residual_multiplier",
    ):
        if getattr(config, field) != plain[field].default:
            raise ValueError(
                f"calibration does not know models with {field} = {getattr(config, field)} "
                f"({config.family}); --quantization at load time does"
            )


def _split(spec: WeightSpec, weight: Weight) -> dict[str, Matrix]:
    """A weight of the program as the checkpoint's tensors, dense, in their own type if they are."""
    dense = weight.data if isinstance(weight, DenseWeight) else weight.dequantize()
    sizes = [part.shape[0] for part in spec.parts]
    pieces = np.split(dense, np.cumsum(sizes)[:-1])
    return {part.key: DenseWeight(piece) for part, piece in zip(spec.parts, pieces, strict=True)}


def _joined(spec: WeightSpec, weights: Mapping[str, Matrix]) -> Weight:
    parts: Sequence[Matrix] = [weights[part.key] for part in spec.parts]
    return parts[0] if len(parts) == 1 else stack(parts)
