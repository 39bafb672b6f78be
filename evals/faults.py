"""Planted faults, and benign changes beside them: what the gate must see and what it must not.

Each is a real fault made small: it is planted in the weights, the program, the executor or the
template of a sound model, and everything else stays as it was. `evals prove` runs them. Exercised
by `pytest tests/evals/test_faults.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from hasten.evals.engine_target import SOUND, Damage
from hasten.kernels.ops import PagedAttention
from hasten.kernels.weights import DenseWeight

if TYPE_CHECKING:
    from collections.abc import Callable

    from hasten.core.binding import ModelBinding
    from hasten.core.protocols import Executor
    from hasten.kernels.program import WeightName
    from hasten.kernels.step import StepBatch, StepResult
    from hasten.kernels.weights import Weight

F32 = npt.NDArray[np.float32]

WRONG_TOKEN_SHARE = 0.01
KEPT_CONTEXT = 256
ROPE_BASE_FACTOR = 10.0
DROPPED_SCALE = 1 / 16
GROUP_SIZE = 32

PLAIN_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
"""A template that many models were trained with; not this one."""


@dataclass(frozen=True, slots=True)
class Change:
    """Something done to a sound model. `harmful` ones must fail, the others must pass."""

    name: str
    harmful: bool
    damage: Damage = SOUND
    flags: str = ""


def _changes() -> tuple[Change, ...]:
    return (
        Change("reference kernels", harmful=False, flags="--kernels reference"),
        Change("fp32 activations", harmful=False, flags="--dtype float32"),
        Change("int8 weights", harmful=False, damage=Damage("int8 weights", binding=int8_weights)),
        Change(
            "one layer at 3 bits", harmful=True,
            damage=Damage("one layer at 3 bits", binding=round_one_layer),
        ),
        Change(
            "dropped KV scale", harmful=True,
            damage=Damage("dropped KV scale", binding=drop_kv_scale),
        ),
        Change(
            "swapped rope base", harmful=True,
            damage=Damage("swapped rope base", binding=swap_rope_base),
        ),
        Change(
            "truncated context", harmful=True,
            damage=Damage("truncated context", binding=truncate_context),
        ),
        Change(
            "wrong chat template", harmful=True,
            damage=Damage("wrong chat template", template=lambda _source: PLAIN_TEMPLATE),
        ),
        Change(
            "1 % wrong tokens while decoding", harmful=True,
            damage=Damage("1 % wrong tokens while decoding", executor=WrongTokens),
        ),
    )  # fmt: skip


def int8_weights(binding: ModelBinding) -> ModelBinding:
    """Every linear layer's weights rounded to 8 bits in groups of 32."""
    return _with_weights(binding, lambda name: name.startswith("layers."), 8)


def round_one_layer(binding: ModelBinding) -> ModelBinding:
    """The linear weights of the middle layer rounded to 3 bits in groups of 32."""
    middle = f"layers.{binding.model.config.num_layers // 2}."
    return _with_weights(binding, lambda name: name.startswith(middle), 3)


def drop_kv_scale(binding: ModelBinding) -> ModelBinding:
    """In the middle layer, K is read without the scale that it was stored with (DROPPED_SCALE)."""
    attention = [i for i, op in enumerate(binding.program.ops) if isinstance(op, PagedAttention)]
    ops = list(binding.program.ops)
    middle = attention[len(attention) // 2]
    op = ops[middle]
    assert isinstance(op, PagedAttention)
    # Stored K is K / s; forgetting to multiply by s when reading divides every score by s.
    ops[middle] = replace(op, scale=op.scale / DROPPED_SCALE)
    return replace(binding, program=replace(binding.program, ops=ops))


def swap_rope_base(binding: ModelBinding) -> ModelBinding:
    """Rotary frequencies of another base: theta / 10."""
    rope = binding.model.config.rope
    half = len(rope.inv_freq)
    factors = ROPE_BASE_FACTOR ** (np.arange(half) / half)
    swapped = tuple(float(f * g) for f, g in zip(rope.inv_freq, factors, strict=True))
    return _with_config(binding, rope=replace(rope, inv_freq=swapped))


def truncate_context(binding: ModelBinding) -> ModelBinding:
    """No layer reads more than the last KEPT_CONTEXT tokens."""
    num_layers = binding.model.config.num_layers
    return _with_config(binding, windows=(KEPT_CONTEXT,) * num_layers)


class WrongTokens:
    """An executor that, while decoding, now and then gives a random token instead of the chosen."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._rng = np.random.default_rng(1)

    def execute(self, batch: StepBatch) -> StepResult:
        result = self._executor.execute(batch)
        decoded = batch.sampling.target_ids < 0
        wrong = decoded & (self._rng.random(len(decoded)) < WRONG_TOKEN_SHARE)
        if wrong.any():
            # Low ids are special tokens, some of which would end the answer.
            result.token_ids = result.token_ids.copy()
            result.token_ids[wrong] = self._rng.integers(1000, 20000, int(wrong.sum()))
        return result


def _with_weights(binding: ModelBinding, chosen: Callable[[str], bool], bits: int) -> ModelBinding:
    """The chosen matrices rounded to `bits` bits, symmetric, in groups of 32 inputs."""
    weights: dict[WeightName, Weight] = {
        name: DenseWeight(_rounded(weight.dequantize(), bits))
        if chosen(name) and len(weight.shape) == 2
        else weight
        for name, weight in binding.model.weights.items()
    }
    return replace(binding, model=replace(binding.model, weights=weights))


def _rounded(matrix: F32, bits: int) -> F32:
    groups = matrix.reshape(len(matrix), -1, GROUP_SIZE)
    scale = np.abs(groups).max(axis=2, keepdims=True) / (2 ** (bits - 1) - 1)
    integers = np.rint(np.divide(groups, scale, out=np.zeros_like(groups), where=scale > 0))
    rounded: F32 = (integers * scale).astype(np.float32).reshape(matrix.shape)
    return rounded


def _with_config(binding: ModelBinding, **changed: Any) -> ModelBinding:
    """The same weights under a changed configuration, and its program."""
    info = binding.model.info
    model = replace(binding.model, info=replace(info, config=replace(info.config, **changed)))
    program = model.build_program(binding.activation_dtype, binding.kv_format)
    return replace(binding, model=model, program=program)


CHANGES = _changes()
