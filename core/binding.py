"""A model on a backend, with every dtype settled: what an engine computes.

Chooses the backend, and what `auto` means for activations and KV cache; what a backend cannot do is
refused by the name of its flag. An fp8 cache is given to the layers that bear it. Exercised by
`pytest tests/cpu/engine/test_build.py tests/cpu/models/test_fallback.py`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from hasten.core.drafter import join_kv_groups, load_drafters
from hasten.core.loading import load_model
from hasten.core.loading.cache import cache_folder
from hasten.core.models.kv_probe import NUM_PROBE_TOKENS, probe_kv
from hasten.core.options import ConfigurationError
from hasten.kernels.backend import (
    KeptWeights,
    UnsupportedOpError,
    available_backends,
    first_refusal,
    get_backend,
)
from hasten.kernels.dtypes import DType

if TYPE_CHECKING:
    from hasten.core.drafter import DrafterModel
    from hasten.core.loading import LoadedModel
    from hasten.core.models import KVFormat
    from hasten.core.options import EngineOptions, ExecutionOptions, ModelOptions
    from hasten.kernels.backend import Backend
    from hasten.kernels.program import Program

KV_DTYPES = {
    "bfloat16": DType.BF16,
    "float32": DType.F32,
    "fp8": DType.FP8_E4M3,
    "fp8_e4m3": DType.FP8_E4M3,
}


def make_backend(execution: ExecutionOptions, kernels: str | None = None) -> Backend:
    """The backend that `execution` asks for, or of its options `kernels`. Raises ValueError."""
    return get_backend(
        kernels or execution.kernels,
        execution.num_threads,
        execution.cpu_activations,
        enforce_eager=execution.enforce_eager,
    )


@dataclass(frozen=True, slots=True)
class ModelBinding:
    """A model on a backend, with every dtype settled: what an engine computes."""

    model: LoadedModel
    backend: Backend
    activation_dtype: DType
    kv_format: KVFormat
    program: Program
    linear_inputs: str = ""  # what integer weights are multiplied with, where a backend chooses
    notes: tuple[str, ...] = ()
    drafters: tuple[DrafterModel, ...] = ()

    @classmethod
    def resolve(cls, model: LoadedModel, backend: Backend, options: EngineOptions) -> ModelBinding:
        """Settle what `auto` means. Raises ConfigurationError for dtypes that do not exist here."""
        activations = _activation_dtype(options, backend)
        kv_dtype = _kv_dtype(options, backend, activations)
        kv_format = model.kv_format(kv_dtype)
        notes: tuple[str, ...] = ()
        if kv_dtype is DType.FP8_E4M3:
            kv_format, notes = _probe_fp8_cache(model, backend, activations)
        program = model.build_program(activations, kv_format)
        inputs = options.execution.cpu_activations if backend.name == "cpu" else ""
        return cls(model, backend, activations, kv_format, program, inputs, notes)

    @classmethod
    def load(cls, options: EngineOptions) -> ModelBinding:
        """The model that the options name, on the backend that they name.

        With `--kernels auto` that is the fastest that can run the model; a note says what could
        not. Raises ConfigurationError, LoadError and UnsupportedOpError.
        """
        model = _load_model(options.model)
        execution = options.execution
        kernels = execution.kernels
        notes: list[str] = []
        for name in available_backends() if kernels == "auto" else (kernels,):
            backend = make_backend(execution, name)
            binding = cls.resolve(model, backend, options)
            reason = first_refusal(backend, binding.program.ops, model.weights)
            if reason is None:
                return replace(binding, notes=(*notes, *binding.notes)).with_drafters(options)
            notes.append(f"kernels {name} cannot run this model: {reason}")
        raise UnsupportedOpError("; ".join(notes))

    def with_drafters(self, options: EngineOptions) -> ModelBinding:
        """This, with the drafters that the options ask for and what they need of the model.

        Raises ConfigurationError and LoadError.
        """
        kv_dtype = _plain_kv_dtype(self.kv_format, self.activation_dtype)
        drafters = load_drafters(options, self.model, self.activation_dtype, kv_dtype)
        if not drafters:
            return self
        layers = {layer for drafter in drafters for layer in drafter.feature_layers}
        program = self.model.build_program(self.activation_dtype, self.kv_format, layers)
        return replace(self, program=join_kv_groups(program, drafters), drafters=drafters)

    @property
    def num_own_groups(self) -> int:
        """KV groups of the model itself; those of the drafters come behind."""
        num_drafters = sum(len(drafter.program.kv_groups) for drafter in self.drafters)
        return len(self.program.kv_groups) - num_drafters

    @property
    def has_idle_processor(self) -> bool:
        """Whether steps leave a processor of the host to others."""
        return self.backend.num_busy_processors < len(os.sched_getaffinity(0))

    def identity(self) -> dict[str, str]:
        """Everything about it that may change a result."""
        return {
            "weights": self.model.content_hash,
            "kernels": self.backend.name,
            "activations": self.activation_dtype.value,
            "kv_cache": self.kv_format.key,
            "linear_inputs": self.linear_inputs,
        }


def _load_model(options: ModelOptions) -> LoadedModel:
    """The model, whose weights are kept as a backend packs them for the next start."""
    model = load_model(
        options.model,
        quantization=options.quantization,
        quantize_lm_head=options.quantize_lm_head,
        max_model_len=options.max_model_len,
        model_impl=options.model_impl,
    )
    kept = KeptWeights(model.weights, cache_folder() / "packed" / model.content_hash)
    return replace(model, weights=kept)


def _activation_dtype(options: EngineOptions, backend: Backend) -> DType:
    if options.model.dtype == "auto":
        return backend.activation_dtypes[0]
    wanted = DType(options.model.dtype)
    if wanted not in backend.activation_dtypes:
        supported = ", ".join(dtype.value for dtype in backend.activation_dtypes)
        raise ConfigurationError(
            f"--dtype {wanted.value} is not supported by kernels {backend.name}; "
            f"supported: {supported}"
        )
    return wanted


def _kv_dtype(options: EngineOptions, backend: Backend, activations: DType) -> DType:
    name = options.cache.kv_cache_dtype
    wanted = activations if name == "auto" else KV_DTYPES.get(name)
    if wanted is None or wanted not in backend.kv_dtypes:
        supported = [key for key, dtype in KV_DTYPES.items() if dtype in backend.kv_dtypes]
        raise ConfigurationError(
            f"--kv-cache-dtype {name} is not supported by kernels {backend.name}; "
            f"supported: auto, {', '.join(supported)}"
        )
    return wanted


def _plain_kv_dtype(kv_format: KVFormat, activations: DType) -> DType:
    """What drafters keep: as the model, but nothing that has to be probed."""
    dtypes = set(kv_format.dtypes)
    return activations if DType.FP8_E4M3 in dtypes else kv_format.dtypes[0]


def _probe_fp8_cache(
    model: LoadedModel, backend: Backend, activations: DType
) -> tuple[KVFormat, tuple[str, ...]]:
    """An fp8 cache for the layers that bear it, a plain one for the others, and what to report.

    Probed on pseudo-random tokens: `core` knows no tokeniser, and the errors are those of text
    (docs/quantisation.md).
    """
    wanted = model.kv_format(DType.FP8_E4M3)
    program = model.build_program(activations, activations)
    rng = np.random.default_rng(0)
    token_ids = rng.integers(0, program.vocab_size, NUM_PROBE_TOKENS).tolist()
    probe = probe_kv(program, model.weights, backend, token_ids, wanted)
    return probe.format(wanted, activations), tuple(probe.lines())
