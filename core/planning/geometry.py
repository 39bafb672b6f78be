"""A model's sizes, from its `config.json` or a model reference: all that planning needs.

Reads any decoder's config by the names that Hugging Face configs share, also of architectures
that this server does not run, since memory and bandwidth depend on sizes alone. Exercised by
`pytest tests/unit/planning`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hasten.core.loading.errors import LoadError
from hasten.core.loading.fields import Fields, read_json

SCHEME_BITS: Mapping[str, float] = {"bf16": 16.0, "fp8": 8.0, "int8": 8.5, "int4": 4.5}
"""Bits per weight, scales included, as `--quantization` makes them: fp8 per channel (negligible),
int8 in groups of 32 with a 16-bit scale, int4 in groups of 64 with a 16-bit scale and offset."""

KV_SCALE_BYTES = 2
"""An fp8 cache keeps a bf16 scale per token and head, for K and for V."""


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts in the place of each MLP."""

    num_experts: int
    num_active: int
    intermediate_size: int


@dataclass(frozen=True, slots=True)
class Geometry:
    """The sizes of a decoder. `windows` has one entry per layer; None reads all tokens."""

    name: str
    hidden_size: int
    intermediate_size: int
    vocab_size: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    max_model_len: int
    windows: tuple[int | None, ...]
    tied_embeddings: bool
    is_gated_mlp: bool
    experts: Experts | None = None

    @property
    def num_layers(self) -> int:
        return len(self.windows)

    @property
    def attention_params(self) -> int:
        """Weights of one layer's attention."""
        q, kv = self.num_heads * self.head_size, self.num_kv_heads * self.head_size
        return self.hidden_size * (2 * q + 2 * kv)

    @property
    def _matrices_per_mlp(self) -> int:
        return 3 if self.is_gated_mlp else 2

    @property
    def mlp_params(self) -> int:
        """Weights of one layer's MLP, all experts together."""
        if self.experts is None:
            return self._matrices_per_mlp * self.hidden_size * self.intermediate_size
        return self.experts.num_experts * (self.expert_params + self.hidden_size)

    @property
    def expert_params(self) -> int:
        """Weights of one expert; 0 without experts."""
        if self.experts is None:
            return 0
        return self._matrices_per_mlp * self.hidden_size * self.experts.intermediate_size

    @property
    def linear_params(self) -> int:
        """Weights that quantisation applies to."""
        return self.num_layers * (self.attention_params + self.mlp_params)

    @property
    def embedding_params(self) -> int:
        """Weights of the embedding and, if it is its own, the LM head."""
        return self.vocab_size * self.hidden_size * (1 if self.tied_embeddings else 2)

    @property
    def num_params(self) -> int:
        norms = (2 * self.num_layers + 1) * self.hidden_size
        return self.linear_params + self.embedding_params + norms

    @property
    def active_params(self) -> int:
        """Weights that one token is multiplied with: active experts, the LM head, no embedding."""
        mlp = self.mlp_params
        if self.experts is not None:
            mlp = self.experts.num_active * self.expert_params
            mlp += self.experts.num_experts * self.hidden_size
        return self.num_layers * (self.attention_params + mlp) + self.head_params

    @property
    def head_params(self) -> int:
        """Weights of the LM head, its own or the embedding."""
        return self.vocab_size * self.hidden_size

    def weight_bytes(self, scheme: str, *, lm_head: bool = False) -> int:
        """Bytes of all weights, linear layers in `scheme`, everything else in bf16.

        With `lm_head` the head is in `scheme` as well, and the embedding if it is the same table.
        """
        converted = self.linear_params + (self.head_params if lm_head else 0)
        rest = self.num_params - converted
        return round(converted * SCHEME_BITS[scheme] / 8) + 2 * rest

    def step_weight_bytes(self, scheme: str, batch: int, *, lm_head: bool = False) -> float:
        """Bytes of weights that a step of `batch` decoding requests reads; see `weight_bytes`.

        With experts, those that at least one of the tokens is expected to be routed to.
        """
        linear = float(self.linear_params)
        if self.experts is not None:
            share = 1 - (1 - self.experts.num_active / self.experts.num_experts) ** batch
            all_experts = self.num_layers * self.experts.num_experts * self.expert_params
            linear -= (1 - share) * all_experts
        head_bits = SCHEME_BITS[scheme if lm_head else "bf16"]
        return (linear * SCHEME_BITS[scheme] + self.head_params * head_bits) / 8

    def kv_groups(self, kv_dtype: str) -> tuple[tuple[int | None, int], ...]:
        """By KV group: its window, and the bytes that a token takes in it."""
        per_head = 2 * self.head_size if kv_dtype == "bf16" else self.head_size + KV_SCALE_BYTES
        per_layer = 2 * self.num_kv_heads * per_head
        return tuple((window, n * per_layer) for window, n in Counter(self.windows).items())

    def kv_bytes_per_token(self, kv_dtype: str) -> int:
        """Of all groups together."""
        return sum(size for _, size in self.kv_groups(kv_dtype))


def read_geometry(reference: str) -> Geometry:
    """The sizes of a config.json, a directory with one, a GGUF file or `embedded`.

    Raises LoadError naming the field that is missing or wrong.
    """
    path = Path(reference).expanduser()
    if path.is_dir():
        path /= "config.json"
    if path.suffix == ".json":
        return geometry_of_config(read_json(path), path.parent.name or str(path))
    return _geometry_of_model(reference)


def geometry_of_config(config: Fields, name: str) -> Geometry:
    """The sizes in a Hugging Face config (the text part of one with several)."""
    if "text_config" in config:
        config = config.nested("text_config")
    num_layers = config.integer(_name(config, "num_hidden_layers", "n_layer"))
    hidden_size = config.integer(_name(config, "hidden_size", "n_embd"))
    num_heads = config.integer(_name(config, "num_attention_heads", "n_head"))
    head_size = _optional(config, "head_dim") or hidden_size // num_heads
    return Geometry(
        name=name,
        hidden_size=hidden_size,
        intermediate_size=_intermediate_size(config, hidden_size),
        vocab_size=config.integer("vocab_size"),
        num_heads=num_heads,
        num_kv_heads=_optional(config, "num_key_value_heads") or num_heads,
        head_size=head_size,
        max_model_len=config.integer(_name(config, "max_position_embeddings", "n_positions")),
        windows=_windows(config, num_layers),
        tied_embeddings="tie_word_embeddings" in config and config.boolean("tie_word_embeddings"),
        is_gated_mlp=not {"ffn_dim", "n_inner"}
        & {n for n in ("ffn_dim", "n_inner") if n in config},
        experts=_experts(config),
    )


def _geometry_of_model(reference: str) -> Geometry:
    from hasten.core.loading.model import read_model_info

    info = read_model_info(reference)
    config = info.config
    return Geometry(
        name=info.name,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        vocab_size=config.vocab_size,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_size=config.head_size,
        max_model_len=config.max_position_embeddings,
        windows=config.windows,
        tied_embeddings=config.tie_word_embeddings,
        is_gated_mlp=True,
    )


def _name(config: Fields, *names: str) -> str:
    """The first of `names` that the config has; the first of all where it has none."""
    return next((name for name in names if name in config), names[0])


def _optional(config: Fields, name: str) -> int | None:
    return config.integer(name) if name in config and config.raw(name) is not None else None


def _intermediate_size(config: Fields, hidden_size: int) -> int:
    for name in ("intermediate_size", "ffn_dim", "n_inner"):
        size = _optional(config, name)
        if size is not None:
            return size
    if "n_embd" in config:
        return 4 * hidden_size  # GPT-2's rule where n_inner is null
    raise config.error("intermediate_size", "is missing")


def _experts(config: Fields) -> Experts | None:
    for name in ("num_local_experts", "num_experts", "n_routed_experts"):
        num_experts = _optional(config, name)
        if num_experts is not None and num_experts > 1:
            size = _optional(config, "moe_intermediate_size") or config.integer("intermediate_size")
            return Experts(num_experts, config.integer("num_experts_per_tok"), size)
    return None


def _windows(config: Fields, num_layers: int) -> tuple[int | None, ...]:
    """The attention window of each layer, by `layer_types` or for all layers alike."""
    window = _optional(config, "sliding_window")
    if window is None or (
        "use_sliding_window" in config and not config.boolean("use_sliding_window")
    ):
        return (None,) * num_layers
    if "layer_types" not in config:
        return (window,) * num_layers
    kinds = config.strings("layer_types")
    if len(kinds) != num_layers:
        raise config.error("layer_types", f"has {len(kinds)} entries for {num_layers} layers")
    known = {"full_attention": None, "sliding_attention": window}
    unknown = sorted(set(kinds) - set(known))
    if unknown:
        raise config.error("layer_types", f"holds {unknown}, which is not understood")
    return tuple(known[kind] for kind in kinds)


__all__ = ["Experts", "Geometry", "LoadError", "geometry_of_config", "read_geometry"]
