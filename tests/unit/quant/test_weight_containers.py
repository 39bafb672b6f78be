"""The weight containers: what the numbers mean, and that cutting and joining keeps it.

The oracle is `dequantize` of the whole, cut or joined as a plain matrix.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from hasten.kernels.weights import (
    ActivationScheme,
    DenseWeight,
    Fp8Weight,
    GroupedIntWeight,
    Matrix,
    Split,
    StackedWeight,
    shard,
    stack,
)

RNG = np.random.default_rng(5)
F32 = npt.NDArray[np.float32]


def int_weight(
    out: int, width: int, group: int, *, bits: int = 4, offset: bool = True, scattered: bool = False
) -> GroupedIntWeight:
    groups = width // group
    q = RNG.integers(0, 256, (out, width // 2), dtype=np.uint8)
    wide = RNG.integers(-128, 128, (out, width), dtype=np.int8)
    scale = RNG.random((out, groups), dtype=np.float32).astype(np.float16)
    g_idx = RNG.permutation(np.arange(width, dtype=np.int32) // group) if scattered else None
    return GroupedIntWeight(
        bits,
        group,
        q if bits == 4 else wide,
        scale,
        RNG.standard_normal((out, groups), dtype=np.float32) if offset else None,
        g_idx,
    )


def fp8_weight(
    out: int,
    width: int,
    block: tuple[int, int],
    activations: ActivationScheme = ActivationScheme.TOKEN,
    input_scale: float | None = None,
) -> Fp8Weight:
    data = RNG.standard_normal((out, width), dtype=np.float32).astype(ml_dtypes.float8_e4m3fn)
    shape = -(-out // block[0]), -(-width // block[1])
    scale = 0.5 + RNG.random(shape, dtype=np.float32)
    return Fp8Weight(data, scale, block, activations, input_scale)


def test_grouped_means_scale_times_q_plus_offset() -> None:
    weight = int_weight(3, 8, 4)
    dense = weight.dequantize()
    for o in range(3):
        for i in range(8):
            byte = int(weight.q[o, i // 2])
            q = byte & 15 if i % 2 == 0 else byte >> 4
            assert weight.offset is not None
            expected = (
                np.float32(weight.scale[o, i // 4]) * np.float32(q) + weight.offset[o, i // 4]
            )
            assert dense[o, i] == expected


def test_g_idx_names_each_inputs_group() -> None:
    weight = int_weight(5, 16, 4, scattered=True)
    assert weight.g_idx is not None
    assert weight.offset is not None
    q = weight.integers().astype(np.float32)
    for i, group in enumerate(weight.g_idx):
        expected = q[:, i] * weight.scale[:, group].astype(np.float32) + weight.offset[:, group]
        np.testing.assert_array_equal(weight.dequantize()[:, i], expected)


def test_fp8_scale_of_a_ragged_block() -> None:
    weight = fp8_weight(130, 200, (128, 128))
    dense = weight.dequantize()
    assert dense[129, 199] == np.float32(weight.data[129, 199]) * weight.scale[1, 1]
    assert dense[127, 127] == np.float32(weight.data[127, 127]) * weight.scale[0, 0]
    assert dense[127, 128] == np.float32(weight.data[127, 128]) * weight.scale[0, 1]


def test_static_scale_comes_with_static_activations_only() -> None:
    with pytest.raises(ValueError, match="input_scale"):
        fp8_weight(4, 4, (4, 4), ActivationScheme.STATIC)
    with pytest.raises(ValueError, match="input_scale"):
        fp8_weight(4, 4, (4, 4), ActivationScheme.TOKEN, 1.0)


def test_wrong_scale_shape_is_refused() -> None:
    with pytest.raises(ValueError, match="scale is"):
        Fp8Weight(np.zeros((4, 4), ml_dtypes.float8_e4m3fn), np.ones((2, 1), np.float32), (4, 4))


WEIGHTS: list[Matrix] = [
    DenseWeight(RNG.standard_normal((256, 512), dtype=np.float32)),
    int_weight(256, 512, 32),
    int_weight(256, 512, 128, offset=False),
    int_weight(256, 512, 512),
    int_weight(256, 512, 512, bits=8, offset=False),
    int_weight(256, 512, 64, bits=8),
    int_weight(256, 512, 64, scattered=True),
    fp8_weight(256, 512, (256, 512)),
    fp8_weight(256, 512, (1, 512)),
    fp8_weight(256, 512, (128, 128)),
    fp8_weight(256, 512, (1, 128)),
]


@pytest.mark.parametrize("weight", WEIGHTS)
def test_cuts_equal_cuts_of_the_whole(weight: Matrix) -> None:
    whole = weight.dequantize()
    rows = RNG.permutation(256)[:77]
    np.testing.assert_array_equal(weight.take_rows(rows).dequantize(), whole[rows])
    np.testing.assert_array_equal(weight.take_rows(slice(3, 130)).dequantize(), whole[3:130])
    np.testing.assert_array_equal(weight.take_inputs(128, 384).dequantize(), whole[:, 128:384])


@pytest.mark.parametrize("weight", WEIGHTS)
@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_shards_join_to_the_whole(weight: Matrix, world_size: int) -> None:
    whole = weight.dequantize()
    ranks = range(world_size)
    columns = [shard(weight, Split.COLUMN, rank, world_size).dequantize() for rank in ranks]
    rows = [shard(weight, Split.ROW, rank, world_size).dequantize() for rank in ranks]
    np.testing.assert_array_equal(np.concatenate(columns), whole)
    np.testing.assert_array_equal(np.concatenate(rows, axis=1), whole)
    assert shard(weight, Split.REPLICATED, world_size - 1, world_size) is weight


def test_a_cut_inside_a_group_is_refused() -> None:
    with pytest.raises(ValueError, match="cut groups of 128"):
        shard(int_weight(4, 384, 128), Split.ROW, 0, 2)
    with pytest.raises(ValueError, match="cut groups of 128"):
        shard(fp8_weight(4, 384, (128, 128)), Split.ROW, 1, 2)
    with pytest.raises(ValueError, match="do not divide by 3"):
        shard(int_weight(4, 384, 128), Split.COLUMN, 0, 3)


def test_ragged_last_block_may_be_cut_off_whole() -> None:
    weight = fp8_weight(130, 200, (128, 128))
    whole = weight.dequantize()
    np.testing.assert_array_equal(weight.take_inputs(128, 200).dequantize(), whole[:, 128:])
    np.testing.assert_array_equal(weight.take_rows(slice(1, 129)).dequantize(), whole[1:129])


@pytest.mark.parametrize(
    "parts",
    [
        [int_weight(8, 64, 32), int_weight(4, 64, 32)],
        [int_weight(8, 64, 32, offset=False), int_weight(4, 64, 32, offset=False)],
        [fp8_weight(8, 64, (8, 64)), fp8_weight(4, 64, (4, 64))],
        [fp8_weight(8, 64, (1, 64)), fp8_weight(4, 64, (4, 64))],
        [fp8_weight(256, 300, (128, 128)), fp8_weight(130, 300, (128, 128))],
        [fp8_weight(130, 300, (128, 128)), fp8_weight(256, 300, (128, 128))],
    ],
)
def test_agreeing_parts_fuse_and_keep_their_meaning(parts: list[Matrix]) -> None:
    fused = stack(parts)
    assert not isinstance(fused, StackedWeight)
    expected = np.concatenate([part.dequantize() for part in parts])
    np.testing.assert_array_equal(fused.dequantize(), expected)


def test_blocks_that_meet_at_borders_stay_blocks() -> None:
    fused = stack([fp8_weight(256, 300, (128, 128)), fp8_weight(130, 300, (128, 128))])
    assert isinstance(fused, Fp8Weight)
    assert fused.block == (128, 128)
    split = stack([fp8_weight(130, 300, (128, 128)), fp8_weight(256, 300, (128, 128))])
    assert isinstance(split, Fp8Weight)
    assert split.block == (1, 128)


def test_same_g_idx_fuses() -> None:
    first = int_weight(8, 64, 32, scattered=True)
    second = first.take_rows(slice(0, 3))
    assert isinstance(stack([first, second]), GroupedIntWeight)


@pytest.mark.parametrize(
    "parts",
    [
        [int_weight(8, 64, 32), int_weight(8, 64, 64)],
        [int_weight(8, 64, 32), int_weight(8, 64, 32, bits=8)],
        [int_weight(8, 64, 32), int_weight(8, 64, 32, offset=False)],
        [int_weight(8, 64, 32, scattered=True), int_weight(8, 64, 32, scattered=True)],
        [int_weight(8, 64, 32), int_weight(8, 64, 32, scattered=True)],
        [fp8_weight(8, 64, (8, 64)), fp8_weight(8, 64, (8, 64), ActivationScheme.NONE)],
        [
            fp8_weight(8, 64, (8, 64), ActivationScheme.STATIC, 0.5),
            fp8_weight(8, 64, (8, 64), ActivationScheme.STATIC, 0.25),
        ],
        [fp8_weight(8, 256, (1, 128)), fp8_weight(8, 256, (1, 256))],
        [fp8_weight(8, 64, (8, 64)), int_weight(8, 64, 32)],
    ],
)
def test_disagreeing_parts_stay_apart(parts: list[Matrix]) -> None:
    stacked = stack(parts)
    assert isinstance(stacked, StackedWeight)
    expected = np.concatenate([part.dequantize() for part in parts])
    np.testing.assert_array_equal(stacked.dequantize(), expected)
    assert stacked.num_bytes == sum(part.num_bytes for part in parts)
