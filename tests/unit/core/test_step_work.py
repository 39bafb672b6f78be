"""The least work of a step, against sums by hand for a tiny decoder of two layers."""

from __future__ import annotations

from hasten.core.latency import Chunk
from hasten.core.step_work import StepWork, WorkCounter
from hasten.kernels.dtypes import DType
from hasten.kernels.ops import GroupedLinear, Linear
from hasten.kernels.program import KVGroupSpec

from tests.helpers.random_models import random_model, tiny_config

QKV, OUT, GATE_UP, DOWN = 256 * 64, 64 * 128, 192 * 64, 64 * 96
TAIL = OUT + GATE_UP + DOWN
HEAD = 96 * 64
PER_PAIR = 2 * 4 * 32
"""Multiply-adds of one layer's heads for one query and one key."""
WINDOW = 4


def counter(window: int | None = None) -> WorkCounter:
    """A byte for each weight, and a hundred for a token of one layer's K and V."""
    model = random_model(tiny_config(windows=(None, window)))
    program = model.build_program(DType.BF16, DType.BF16)

    def token_bytes(spec: KVGroupSpec) -> float:
        assert spec.num_kv_heads == 2
        return 100.0

    def weight_bytes(op: Linear | GroupedLinear) -> float:
        shape = model.weights[op.weight].shape
        return float(shape[0] * shape[1])

    return WorkCounter(program, model.weights, weight_bytes, token_bytes)


def test_a_decoding_step_reads_all_weights_once_and_each_context() -> None:
    work = counter().count([Chunk(9, 1, 1), Chunk(4, 1, 1)])
    assert work.num_bytes == 2 * (QKV + TAIL) + HEAD + 2 * (10 + 5) * 100
    assert work.multiply_adds == 2 * (2 * (QKV + TAIL) + HEAD) + 2 * (10 + 5) * PER_PAIR


def test_the_last_layer_computes_only_rows_whose_logits_are_wanted() -> None:
    work = counter().count([Chunk(0, 8, 1)])
    first_layer = 8 * (QKV + TAIL) + 36 * PER_PAIR
    last_layer = 8 * QKV + TAIL + 8 * PER_PAIR
    assert work.multiply_adds == first_layer + last_layer + HEAD
    assert work.num_bytes == 2 * (QKV + TAIL) + HEAD + 2 * 8 * 100


def test_a_chunk_without_logits_needs_no_more_than_its_cache() -> None:
    work = counter().count([Chunk(0, 8)])
    assert work.multiply_adds == 8 * (2 * QKV + TAIL) + 36 * PER_PAIR
    assert work.num_bytes == 2 * QKV + TAIL + 8 * 100


def test_a_window_bounds_what_is_read() -> None:
    every, windowed = (counter(window).count([Chunk(6, 2, 2)]) for window in (None, WINDOW))
    # The last layer: 8 tokens and 7 + 8 pairs, or the 5 tokens and 4 + 4 pairs of the window.
    assert every.num_bytes - windowed.num_bytes == 3 * 100
    assert every.multiply_adds - windowed.multiply_adds == 7 * PER_PAIR


def test_nothing_is_no_work() -> None:
    assert counter().count([]) == StepWork()
