"""From options to a method that quantises layers and a format that stores them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hasten.core.options import ConfigurationError
from hasten.kernels.weights import ActivationScheme
from hasten.quant.formats import AwqFormat, CompressedTensorsFormat, GptqFormat
from hasten.quant.formats.base import GROUP_SIZES
from hasten.quant.formats.compressed_tensors_config import Fp8Scheme, IntScheme, Scheme
from hasten.quant.formats.gptq import GptqLayer
from hasten.quant.fp8 import Granularity
from hasten.quant.methods import AwqMethod, Fp8Method, GptqMethod, NearestMethod
from hasten.quant.rounding import IntGrid
from ml_dtypes import bfloat16

if TYPE_CHECKING:
    from hasten.core.models import DecoderConfig
    from hasten.core.quantize.options import QuantizeOptions
    from hasten.quant.calibration import Method


@dataclass(frozen=True, slots=True)
class QuantizePlan:
    """How layers are quantised and stored; `group_size` is None for fp8."""

    method: Method
    format: AwqFormat | GptqFormat | CompressedTensorsFormat
    group_size: int | None

    @property
    def static_kv(self) -> bool:
        """Whether the checkpoint brings scales of the KV cache."""
        return isinstance(self.format, CompressedTensorsFormat) and self.format.static_kv


def make_plan(options: QuantizeOptions, config: DecoderConfig) -> QuantizePlan:
    """Raises ConfigurationError when the model's shapes or the scheme's format do not allow it."""
    static_kv = options.kv_cache is not None
    if options.scheme == "fp8":
        return _fp8_plan(options, static_kv=static_kv)
    group_size = choose_group_size(options.group_size, config)
    symmetric = options.scheme in ("int4-gptq", "int8")
    grid = IntGrid(8 if options.scheme == "int8" else 4, group_size, symmetric)
    if options.scheme == "int4-awq":
        _refuse_kv(options, "AutoAWQ's")
        return QuantizePlan(AwqMethod(grid), AwqFormat("gemm", group_size, True), group_size)
    if options.scheme == "int4-gptq":
        _refuse_kv(options, "GPTQ's")
        layer = GptqLayer(4, group_size, sym=True)
        return QuantizePlan(GptqMethod(grid), GptqFormat(layer), group_size)
    # What reads compressed-tensors converts scales to the model's dtype: bf16 survives that.
    method = NearestMethod(replace(grid, scale_dtype=bfloat16))
    scheme = IntScheme(grid.bits, group_size, symmetric)
    return QuantizePlan(method, _compressed(scheme, static_kv=static_kv), group_size)


def _fp8_plan(options: QuantizeOptions, *, static_kv: bool) -> QuantizePlan:
    if options.activations == "static":
        method = Fp8Method(Granularity.TENSOR, ActivationScheme.STATIC)
    else:
        method = Fp8Method(Granularity.CHANNEL, ActivationScheme.TOKEN)
    scheme = Fp8Scheme(method.granularity.value, method.activations)
    return QuantizePlan(method, _compressed(scheme, static_kv=static_kv), None)


def _compressed(scheme: Scheme, *, static_kv: bool) -> CompressedTensorsFormat:
    return CompressedTensorsFormat(((("Linear",), scheme),), ("lm_head",), static_kv)


def choose_group_size(wanted: int | None, config: DecoderConfig) -> int:
    """What was asked for, or the largest that fits. Raises ConfigurationError naming what fits."""
    widths = {config.hidden_size, config.q_width, config.intermediate_size}
    fitting = [size for size in GROUP_SIZES if all(width % size == 0 for width in widths)]
    if not fitting:
        raise ConfigurationError(
            f"no group size of {', '.join(map(str, GROUP_SIZES))} divides the model's "
            f"{', '.join(map(str, sorted(widths)))} inputs"
        )
    if wanted is not None and wanted not in fitting:
        raise ConfigurationError(
            f"--group-size {wanted} does not divide the model's "
            f"{', '.join(map(str, sorted(widths)))} inputs; possible: "
            f"{', '.join(map(str, fitting))}"
        )
    return wanted or max(fitting)


def _refuse_kv(options: QuantizeOptions, whose: str) -> None:
    if options.kv_cache is not None:
        raise ConfigurationError(
            f"--kv-cache {options.kv_cache}: {whose} format holds no cache scales; "
            "fp8, int8 and int4-rtn checkpoints do"
        )
