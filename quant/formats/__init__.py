"""Checkpoints that other tools quantised, read without loss and without those tools.

`recognise` turns a model's `quantization_config` into the format that reads its tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hasten.quant.formats.awq import AwqFormat
from hasten.quant.formats.base import (
    CheckpointWriter,
    FormatError,
    KVScales,
    QuantFormat,
    Tensors,
)
from hasten.quant.formats.compressed_tensors import CompressedTensorsFormat
from hasten.quant.formats.fp8_block import HuggingFaceFp8Format
from hasten.quant.formats.gptq import GptqFormat

__all__ = [
    "AwqFormat",
    "CheckpointWriter",
    "CompressedTensorsFormat",
    "FormatError",
    "GptqFormat",
    "HuggingFaceFp8Format",
    "KVScales",
    "QuantFormat",
    "Tensors",
    "recognise",
]

_FORMATS: dict[str, Callable[[Mapping[str, Any]], QuantFormat]] = {
    "awq": AwqFormat.from_config,
    "gptq": GptqFormat.from_config,
    "compressed-tensors": CompressedTensorsFormat.from_config,
    "fp8": HuggingFaceFp8Format.from_config,
}


def recognise(config: Mapping[str, Any]) -> QuantFormat:
    """The format that a `quantization_config` describes. Raises FormatError naming the field."""
    method = config.get("quant_method")
    if method not in _FORMATS:
        raise FormatError(
            f"quantization_config.quant_method: {method!r} is not supported; "
            f"supported: {', '.join(_FORMATS)}"
        )
    return _FORMATS[method](config)
