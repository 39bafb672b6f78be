"""Devices by name: memory, bandwidth and dense arithmetic peaks, from their makers' data sheets.

Peaks are without sparsity, in operations per second (a multiply-add is two). GPUs whose tensor
cores have no fp8 compute fp8 weights in bf16. Exercised by `pytest tests/unit/planning`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches

from hasten.core.options import ConfigurationError

GIB = 2**30


@dataclass(frozen=True, slots=True)
class Device:
    """`memory_bytes`; `bandwidth` in bytes/s; `bf16_flops` and `fp8_flops` per second."""

    name: str
    memory_bytes: int
    bandwidth: float
    bf16_flops: float
    fp8_flops: float
    source: str


def _device(
    name: str, gb: float, tb_per_s: float, bf16_tflops: float, fp8_tflops: float, source: str
) -> Device:
    return Device(
        name, round(gb * 1e9), tb_per_s * 1e12, bf16_tflops * 1e12, fp8_tflops * 1e12, source
    )


DEVICES = {
    device.name: device
    for device in (
        _device("a10", 24, 0.600, 125, 125, "NVIDIA A10 data sheet, 2021"),
        _device("a100-40gb", 40, 1.555, 312, 312, "NVIDIA A100 data sheet, 2020"),
        _device("a100-80gb", 80, 2.039, 312, 312, "NVIDIA A100 80GB SXM data sheet, 2021"),
        _device("b200", 180, 7.7, 2250, 4500, "NVIDIA HGX B200 data sheet, 2025"),
        _device("h100-pcie", 80, 2.0, 756, 1513, "NVIDIA H100 PCIe product brief, 2022"),
        _device("h100-sxm", 80, 3.35, 989, 1979, "NVIDIA H100 data sheet, 2023"),
        _device("h200", 141, 4.8, 989, 1979, "NVIDIA H200 data sheet, 2024"),
        _device("l4", 24, 0.300, 121, 242, "NVIDIA L4 data sheet, 2023"),
        _device("l40s", 48, 0.864, 362, 733, "NVIDIA L40S data sheet, 2023"),
        _device("rtx-3090", 24, 0.936, 71, 71, "NVIDIA Ampere GA102 white paper, 2021"),
        _device("rtx-4090", 24, 1.008, 165, 330, "NVIDIA Ada white paper, 2022"),
        _device("mi300x", 192, 5.3, 1307, 2615, "AMD Instinct MI300X data sheet, 2023"),
    )
}


def find_device(name: str) -> Device:
    """Raises ConfigurationError naming the nearest known device."""
    key = name.lower().replace("_", "-").replace(" ", "-")
    if key in DEVICES:
        return DEVICES[key]
    near = get_close_matches(key, DEVICES, n=1, cutoff=0.3)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise ConfigurationError(f"--gpu {name}: not known{hint} (known: {', '.join(DEVICES)})")


_UNITS = {"": 1, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "ki": 2**10, "mi": 2**20, "gi": 2**30}
_UNITS["ti"] = 2**40


def parse_quantity(option: str, text: str) -> float:
    """`54GiB`, `3.35TB/s`, `989TFLOPS` or a plain number, in bytes (per second) or operations.

    Raises ConfigurationError naming `option`.
    """
    match = re.fullmatch(
        r"\s*([0-9]*\.?[0-9]+)\s*([kmgt]i?)?\s*(b|b/s|flops?|flop/s)?\s*", text.lower()
    )
    if match is None:
        raise ConfigurationError(f"{option} {text!r}: write it like 54GiB, 3.35TB/s or 989TFLOPS")
    return float(match[1]) * _UNITS[match[2] or ""]
