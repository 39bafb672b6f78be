"""KV groups by window and dtype, and every layer's place in them."""

from __future__ import annotations

from dataclasses import replace

from hasten.core.models import KVFormat, kv_groups, kv_layers
from hasten.core.models.layers import layer_program
from hasten.kernels.dtypes import DType
from hasten.kernels.ops import RopeStoreKV
from hasten.kernels.program import KVLayer

from tests.helpers.random_models import random_model, tiny_config

FP8, BF16 = DType.FP8_E4M3, DType.BF16


def test_layers_share_a_group_when_window_and_dtype_agree() -> None:
    config = replace(tiny_config(), num_layers=5, windows=(None, 16, None, 16, None))
    mixed = KVFormat((FP8, FP8, BF16, FP8, FP8))
    groups = kv_groups(config, mixed)
    assert [(group.window, group.dtype, group.num_layers) for group in groups] == [
        (None, FP8, 2),
        (16, FP8, 2),
        (None, BF16, 1),
    ]
    assert kv_layers(config, mixed) == (
        KVLayer(0, 0),
        KVLayer(1, 0),
        KVLayer(2, 0),
        KVLayer(1, 1),
        KVLayer(0, 1),
    )


def test_static_scales_reach_their_layers() -> None:
    model = replace(random_model(tiny_config()), kv_scales={1: (0.5, 0.25)})
    stores = [
        [op.kv_scales for op in model.build_program(BF16, dtype).ops if isinstance(op, RopeStoreKV)]
        for dtype in (FP8, BF16)
    ]
    assert stores[0] == [None, (0.5, 0.25), *[None] * (len(stores[0]) - 2)]
    assert set(stores[1]) == {None}


def test_formats_have_keys_of_their_own() -> None:
    formats = [
        KVFormat((FP8, FP8)),
        KVFormat((FP8, BF16)),
        KVFormat((BF16, FP8)),
        KVFormat((BF16, BF16)),
        KVFormat((FP8, FP8), {0: (1.0, 1.0)}),
    ]
    assert len({kv_format.key for kv_format in formats}) == 5


def test_a_layer_program_holds_one_layer() -> None:
    model = random_model(tiny_config())
    program = model.build_program(DType.F32, DType.F32)
    for layer_idx in range(model.config.num_layers):
        alone = layer_program(program, layer_idx)
        layers = {name.split(".")[1] for name in alone.weight_names() if name.startswith("layers")}
        assert layers == {str(layer_idx)}
        assert [spec.num_layers for spec in alone.kv_groups] == [1]
