"""The rotary positions that a `config.json` asks for.

Reads `rope_theta` and `rope_scaling` (transformers 4), or `rope_parameters` (transformers 5), which
may hold one set for layers with a window and one for the others. A scaling whose angles depend on
the length of the text is settled here, once for all requests:

- `dynamic` changes nothing up to `max_position_embeddings`, beyond which no request may go;
- `longrope` has two sets of factors: the short ones serve where requests cannot be longer than the
  original context (`--max-model-len`), else the long ones.

Exercised by `pytest tests/unit/loading/test_hf_rope.py`.
"""

from __future__ import annotations

import logging

from hasten.core.loading.fields import Fields
from hasten.core.loading.hf_families import Family
from hasten.core.models.rope import (
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    Scaling,
    YarnScaling,
    long_attention_factor,
    make_rope,
    yarn_attention_factor,
)
from hasten.kernels.ops import Rope

logger = logging.getLogger(__name__)

_COMMON = {
    "rope_type",
    "type",
    "rope_theta",
    "partial_rotary_factor",
    "original_max_position_embeddings",
}
_FIELDS = {
    "default": {"factor"},  # left over by some exports, without meaning
    "linear": {"factor"},
    "dynamic": {"factor"},
    "llama3": {"factor", "low_freq_factor", "high_freq_factor"},
    "yarn": {
        "factor",
        "attention_factor",
        "beta_fast",
        "beta_slow",
        "mscale",
        "mscale_all_dim",
        "truncate",
    },
    "longrope": {"factor", "attention_factor", "short_factor", "long_factor"},
    "su": {"factor", "attention_factor", "short_factor", "long_factor"},
}
"""By type, what its parameters may be; `su` is the old name of `longrope`."""


def read_ropes(
    config: Fields, family: Family, head_size: int, max_model_len: int | None
) -> tuple[Rope, Rope | None]:
    """The rope of the model, and of its layers with a window where theirs is another.

    Raises LoadError naming the field that is missing, mistyped or not supported.
    """
    reader = _RopeReader(config, family, head_size, max_model_len)
    if "rope_parameters" not in config:
        scaling = config.nested("rope_scaling") if "rope_scaling" in config else None
        return reader.read(scaling, (config,)), _local_rope(config, family, head_size)
    parameters = config.nested("rope_parameters")
    if family.local_rope_theta is None:
        return reader.read(parameters, (parameters, config)), None
    parameters.refuse_others({"full_attention", "sliding_attention"})
    full, local = parameters.nested("full_attention"), parameters.nested("sliding_attention")
    return reader.read(full, (full,)), reader.read(local, (local,))


def _local_rope(config: Fields, family: Family, head_size: int) -> Rope | None:
    if family.local_rope_theta is None:
        return None
    name = "rope_local_base_freq"
    return make_rope(head_size, config.number(name) if name in config else family.local_rope_theta)


class _RopeReader:
    """Reads one set of parameters of a model."""

    def __init__(
        self, config: Fields, family: Family, head_size: int, max_model_len: int | None
    ) -> None:
        self._config = config
        self._family = family
        self._head_size = head_size
        self._max_model_len = max_model_len

    def read(self, parameters: Fields | None, owners: tuple[Fields, ...]) -> Rope:
        """`owners` are searched for the base and the rotated share of a head, in order."""
        share = _first_number(owners, "partial_rotary_factor")
        theta = _first_number(owners, "rope_theta")
        if theta is None:
            theta = self._family.rope_theta
            logger.info("rope_theta is absent: for %s that means %g", self._family.name, theta)
        rotary_dim = self._head_size if share is None else int(self._head_size * share)
        return make_rope(
            rotary_dim, theta, None if parameters is None else self._scaling(parameters)
        )

    def _scaling(self, fields: Fields) -> Scaling | None:
        name = next((name for name in ("rope_type", "type") if name in fields), None)
        kind = "default"
        if name is not None:
            fields.refuse_unless(name, tuple(_FIELDS))
            kind = fields.text(name)
        fields.refuse_others(_COMMON | _FIELDS[kind])
        if kind == "linear":
            return LinearScaling(fields.number("factor"))
        if kind == "llama3":
            return Llama3Scaling(
                fields.number("factor"),
                fields.number("low_freq_factor"),
                fields.number("high_freq_factor"),
                fields.integer("original_max_position_embeddings"),
            )
        if kind == "yarn":
            return _yarn(fields)
        return self._long(fields) if kind in ("longrope", "su") else None

    def _long(self, fields: Fields) -> LongRopeScaling:
        owner = fields if "original_max_position_embeddings" in fields else self._config
        original_len = owner.integer("original_max_position_embeddings", minimum=2)
        max_len = self._config.integer("max_position_embeddings")
        factor = fields.number("factor") if "factor" in fields else max_len / original_len
        served_len = min(max_len, self._max_model_len or max_len)
        chosen = "long_factor" if served_len > original_len else "short_factor"
        logger.info("longrope: %s, for requests of up to %d tokens", chosen, served_len)
        attention_factor = _optional(fields, "attention_factor")
        if attention_factor is None:
            attention_factor = long_attention_factor(factor, original_len)
        return LongRopeScaling(fields.numbers(chosen), attention_factor)


def _yarn(fields: Fields) -> YarnScaling:
    factor = fields.number("factor")
    attention_factor = _optional(fields, "attention_factor")
    if attention_factor is None:
        attention_factor = yarn_attention_factor(factor)
        mscale, all_dims = _optional(fields, "mscale"), _optional(fields, "mscale_all_dim")
        if mscale is not None and all_dims is not None:
            attention_factor = yarn_attention_factor(factor, mscale)
            attention_factor /= yarn_attention_factor(factor, all_dims)
    return YarnScaling(
        factor,
        fields.integer("original_max_position_embeddings"),
        attention_factor,
        beta_fast=_optional(fields, "beta_fast") or 32.0,
        beta_slow=_optional(fields, "beta_slow") or 1.0,
        truncate=fields.boolean("truncate") if "truncate" in fields else True,
    )


def _optional(fields: Fields, name: str) -> float | None:
    return fields.number(name) if name in fields else None


def _first_number(owners: tuple[Fields, ...], name: str) -> float | None:
    return next((fields.number(name) for fields in owners if name in fields), None)
