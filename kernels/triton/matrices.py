"""Weights as the products read them: device tensors in one of three kinds.

    dense    bf16 [out, in]
    packed   integers (or e4m3, with inputs left as they are) that a product turns into bf16 in
             registers: w = bf16(scale * code + offset). A 16-bit word holds 4 or 2 codes that are
             UNIT inputs apart, so that each lane of a word, over UNIT words, is UNIT consecutive
             inputs of one group:

                 inputs   0 .. 31 | 32 .. 63 | 64 .. 95 | 96 .. 127     (4 codes per word)
                 word j   bits 0-3   bits 4-7   bits 8-11  bits 12-15   of inputs j, 32 + j, ...

             8-bit integers are stored as code + 128. Scales and offsets are [groups, out].
    fp8      e4m3 [out, in], multiplied with e4m3 inputs; scales fp32 [groups, out]

A weight that no kind fits (scattered groups, groups that UNIT does not divide) becomes dense.
Exercised by `pytest tests/cpu/triton/test_conformance.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from hasten.kernels.triton.binding import to_device
from hasten.kernels.weights import (
    FP8_GROUP,
    ActivationScheme,
    DenseWeight,
    Fp8Weight,
    GroupedIntWeight,
    StackedWeight,
)

if TYPE_CHECKING:
    from hasten.kernels.weights import Matrix, Weight

UNIT = 32
"""Consecutive inputs that lie in the same lane of consecutive words."""

DENSE, PACKED, FP8 = "dense", "packed", "fp8"


class DeviceMatrix(NamedTuple):
    """One matrix on the device. Tensors that a kind does not have stand for nothing.

    `codes` says what a packed word holds: "u4", "i8" or "e4m3". `group_size` is inputs per scale,
    0 where a row has one.
    """

    kind: str
    shape: tuple[int, int]  # out, in
    data: torch.Tensor
    scale: torch.Tensor
    offset: torch.Tensor
    codes: str = ""
    group_size: int = 0
    has_offset: bool = False
    activations: ActivationScheme = ActivationScheme.NONE
    input_scale: float = 0.0

    @property
    def launch_kind(self) -> str:
        """The kind in the launch table: scales inside a sum take registers from its tiles."""
        by_group = self.group_size > 0 or self.activations is ActivationScheme.TOKEN_GROUP
        return "fp8_group" if self.kind == FP8 and by_group else self.kind


def parts_of(weight: Weight) -> tuple[Matrix, ...]:
    return weight.parts if isinstance(weight, StackedWeight) else (weight,)


def kind_of(weight: Matrix, *, has_fp8: bool) -> str:
    """The kind that a matrix becomes on a device with or without fp8 arithmetic."""
    if isinstance(weight, GroupedIntWeight):
        fits = weight.g_idx is None and weight.group_size % UNIT == 0
        return PACKED if fits else DENSE
    if isinstance(weight, Fp8Weight) and has_fp8:
        whole = weight.block[1] >= weight.shape[1]
        if weight.activations is ActivationScheme.NONE:
            return PACKED if whole or weight.block[1] % UNIT == 0 else DENSE
        return FP8 if whole or weight.block[1] == FP8_GROUP else DENSE
    return DENSE


def to_matrix(weight: Matrix, device: torch.device, *, has_fp8: bool) -> DeviceMatrix:
    """Move a matrix to the device in the kind that fits it."""
    kind = kind_of(weight, has_fp8=has_fp8)
    if kind == PACKED and isinstance(weight, GroupedIntWeight):
        return _pack_integers(weight, device)
    if isinstance(weight, Fp8Weight) and kind == PACKED:
        return _pack_e4m3(weight, device)
    if isinstance(weight, Fp8Weight) and kind == FP8:
        return _fp8(weight, device)
    return _dense(weight, device)


def _dense(weight: Matrix, device: torch.device) -> DeviceMatrix:
    if isinstance(weight, DenseWeight):
        data = to_device(weight.data, device)
    elif device.type == "meta":
        data = torch.empty(weight.shape, device=device)
    else:
        data = to_device(weight.dequantize(), device)
    data = data.to(torch.bfloat16)
    return DeviceMatrix(DENSE, _shape(weight), data, data, data)


def _pack_integers(weight: GroupedIntWeight, device: torch.device) -> DeviceMatrix:
    q = to_device(weight.q, device)
    if weight.bits == 4:
        codes = torch.stack((q & 15, q >> 4), dim=-1).flatten(1)
    else:
        codes = (q.to(torch.int16) + 128).to(torch.uint8)
    data = _pack_words(codes, 16 // weight.bits)
    scale = to_device(weight.scale, device).float().t().contiguous()
    offset = scale
    if weight.offset is not None:
        offset = to_device(weight.offset, device).float().t().contiguous()
    return DeviceMatrix(
        PACKED,
        _shape(weight),
        data,
        scale,
        offset,
        codes="u4" if weight.bits == 4 else "i8",
        group_size=weight.group_size if scale.shape[0] > 1 else 0,
        has_offset=weight.offset is not None,
    )


def _pack_e4m3(weight: Fp8Weight, device: torch.device) -> DeviceMatrix:
    data = _pack_words(to_device(weight.data.view(np.uint8), device), 2)
    scale = _row_scale(weight, device)
    group_size = weight.block[1] if scale.shape[0] > 1 else 0
    return DeviceMatrix(
        PACKED, _shape(weight), data, scale, scale, codes="e4m3", group_size=group_size
    )


def _fp8(weight: Fp8Weight, device: torch.device) -> DeviceMatrix:
    scale = _row_scale(weight, device)
    return DeviceMatrix(
        FP8,
        _shape(weight),
        to_device(weight.data.view(np.uint8), device).view(torch.float8_e4m3fn),
        scale,
        scale,
        group_size=FP8_GROUP if scale.shape[0] > 1 else 0,
        activations=weight.activations,
        input_scale=weight.input_scale or 0.0,
    )


def _row_scale(weight: Fp8Weight, device: torch.device) -> torch.Tensor:
    """[column blocks, out] fp32."""
    scale = to_device(weight.scale, device).float()
    rows = torch.arange(weight.shape[0], device=device) // weight.block[0]
    return scale.index_select(0, rows).t().contiguous()


def _pack_words(codes: torch.Tensor, codes_per_word: int) -> torch.Tensor:
    """[out, in] uint8 to [out, padded in / codes_per_word] int16, zeros for the inputs added."""
    out, width = codes.shape
    padded = torch.nn.functional.pad(codes, (0, -width % (UNIT * codes_per_word)))
    lanes = padded.view(out, -1, codes_per_word, UNIT)
    word = torch.zeros(lanes[:, :, 0].shape, dtype=torch.int32, device=codes.device)
    for lane in range(codes_per_word):
        word |= lanes[:, :, lane].to(torch.int32) << (lane * 16 // codes_per_word)
    return word.to(torch.int16).flatten(1)


def _shape(weight: Matrix) -> tuple[int, int]:
    out, width = weight.shape
    return out, width
