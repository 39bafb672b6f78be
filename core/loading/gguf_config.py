"""GGUF metadata as a `DecoderConfig`.

What metadata is called is listed in the GGUF specification; what it leaves unsaid, family by
family, in `gguf_families`. Exercised by `pytest tests/unit/loading/test_gguf.py`.
"""

from __future__ import annotations

from typing import Any

from hasten.core.loading.errors import LoadError
from hasten.core.loading.fields import Fields
from hasten.core.loading.gguf_families import FAMILIES, GGUFFamily
from hasten.core.loading.gguf_file import GGUFFile
from hasten.core.loading.gguf_rope import read_ropes
from hasten.core.models.config import MAX_EXPERTS, MAX_HEAD_SIZE, MAX_LAYERS, DecoderConfig, Experts

FACTORS = (
    "attention.scale",
    "attn_logit_softcapping",
    "embedding_scale",
    "expert_weights_scale",
    "final_logit_softcapping",
    "logit_scale",
    "residual_scale",
)
"""What some families put into their formulas; others must not have it."""


def read_gguf_config(file: GGUFFile, max_model_len: int | None = None) -> DecoderConfig:
    """The numbers of the model, for requests of at most `max_model_len` tokens (None: the model's
    own bound), which LongRoPE models depend on.

    Raises LoadError naming the field that is missing, mistyped or not supported.
    """
    metadata = Fields(file.metadata, str(file.path))
    name = metadata.text("general.architecture")
    if name not in FAMILIES:
        raise metadata.error(
            "general.architecture",
            f"is {name!r}, which is not supported; supported: {', '.join(FAMILIES)}",
        )
    metadata.refuse_unless("split.count", (0, 1))
    prefix = f"{name}."
    own = {
        key.removeprefix(prefix): value
        for key, value in file.metadata.items()
        if key.startswith(prefix)
    }
    try:
        return _Reader(file, Fields(own, str(file.path), prefix), name).read(max_model_len)
    except LoadError:
        raise
    except ValueError as error:
        raise LoadError(f"{file.path}: {error}") from error


class _Reader:
    """Reads the metadata under the architecture's prefix, as in `llama.block_count`."""

    def __init__(self, file: GGUFFile, own: Fields, name: str) -> None:
        self._file = file
        self._own = own
        self._name = name
        self._family: GGUFFamily = FAMILIES[name]

    def read(self, max_model_len: int | None) -> DecoderConfig:
        own, family = self._own, self._family
        self._refuse_other_arithmetic()
        hidden_size = own.integer("embedding_length")
        num_heads = own.integer("attention.head_count")
        num_layers = own.integer("block_count", maximum=MAX_LAYERS)
        head_size = self._head_size(hidden_size, num_heads)
        tensors = self._file.tensors
        rope, window_rope = read_ropes(self._file, own, family, head_size, max_model_len)
        fused = "_qkv" if family.fused_projections else "_q"
        numbers: dict[str, Any] = {
            "attention_scale": (hidden_size / num_heads) ** -0.5
            if num_layers in family.square_heads
            else None,
            "embedding_multiplier": hidden_size**0.5 if family.scales_embeddings else 1.0,
            **self._factors(),
        }
        return DecoderConfig(
            family=self._name,
            vocab_size=self._vocab_size(),
            hidden_size=hidden_size,
            intermediate_size=own.integer("feed_forward_length"),
            num_layers=num_layers,
            num_heads=num_heads,
            num_kv_heads=own.integer("attention.head_count_kv")
            if "attention.head_count_kv" in own
            else num_heads,
            head_size=head_size,
            max_position_embeddings=own.integer("context_length"),
            rms_norm_eps=own.number("attention.layer_norm_rms_epsilon"),
            rope=rope,
            windows=self._windows(num_layers),
            activation=family.activation,
            tie_word_embeddings="output.weight" not in tensors,
            qkv_bias=f"blk.0.attn{fused}.bias" in tensors,
            o_bias="blk.0.attn_output.bias" in tensors,
            mlp_bias="blk.0.ffn_down.bias" in tensors,
            qk_norm=family.qk_norm,
            joint_qk_norm=family.joint_qk_norm,
            norms=family.norms,
            fused_projections=family.fused_projections,
            experts=self._experts(),
            window_rope=window_rope,
            unrotated_layers=self._unrotated_layers(num_layers),
            **numbers,
        )

    def _refuse_other_arithmetic(self) -> None:
        """Variants that share the architecture's name but not its formulas."""
        own, family = self._own, self._family
        own.refuse_unless("attention.causal", (True,))
        own.refuse_unless("expert_shared_count", (0,))
        if not family.has_experts:
            own.refuse_unless("expert_count", (0,))
        for name in FACTORS:
            if name in own and name not in family.factors and name != family.logit_divisor:
                raise own.error(name, "is present, which is not supported")

    def _factors(self) -> dict[str, float]:
        """The fields of the configuration that the file sets one by one."""
        own, family = self._own, self._family
        found = {field: own.number(name) for name, field in family.factors.items() if name in own}
        if family.logit_divisor is not None and family.logit_divisor in own:
            found["logit_scale"] = 1 / own.number(family.logit_divisor)
        return found

    def _head_size(self, hidden_size: int, num_heads: int) -> int:
        own = self._own
        if "attention.key_length" in own:
            head_size = own.integer("attention.key_length", maximum=MAX_HEAD_SIZE)
            own.refuse_unless("attention.value_length", (head_size,))
            return head_size
        if hidden_size % num_heads or hidden_size // num_heads > MAX_HEAD_SIZE:
            raise own.error(
                "attention.head_count", f"is {num_heads} for embeddings of {hidden_size}"
            )
        return hidden_size // num_heads

    def _vocab_size(self) -> int:
        """The rows of the embedding: the metadata's own count is optional and often absent."""
        table = self._file.tensors.get("token_embd.weight")
        if table is None:
            raise LoadError(f"{self._file.path}: tensor 'token_embd.weight' is missing")
        return table.shape[0]

    def _experts(self) -> Experts | None:
        own, family = self._own, self._family
        is_mixture = "expert_count" in own and own.integer("expert_count", minimum=0) > 0
        if not family.requires_experts and not is_mixture:
            return None
        own.refuse_unless("expert_gating_func", (1,))
        size = "expert_feed_forward_length"
        return Experts(
            num_experts=own.integer("expert_count", maximum=MAX_EXPERTS),
            num_active=own.integer("expert_used_count", maximum=MAX_EXPERTS),
            intermediate_size=own.integer(size if size in own else "feed_forward_length"),
            renormalize=True,
        )

    def _windows(self, num_layers: int) -> tuple[int | None, ...]:
        own, period = self._own, self._family.window_period
        name = "attention.sliding_window"
        window = own.integer(name, minimum=0) if name in own else 0
        if not window:
            return (None,) * num_layers
        pattern = "attention.sliding_window_pattern"
        if pattern in own and isinstance(own.raw(pattern), list):
            return self._windows_of_flags(pattern, window, num_layers)
        if pattern in own:
            period = own.integer(pattern)
        if period is None:
            return (window,) * num_layers
        return tuple(window if (idx + 1) % period else None for idx in range(num_layers))

    def _windows_of_flags(
        self, pattern: str, window: int, num_layers: int
    ) -> tuple[int | None, ...]:
        flags = self._own.raw(pattern)
        if len(flags) != num_layers or not all(isinstance(flag, bool) for flag in flags):
            raise self._own.error(pattern, f"must be {num_layers} booleans")
        return tuple(window if flag else None for flag in flags)

    def _unrotated_layers(self, num_layers: int) -> frozenset[int]:
        period = self._family.unrotated_period
        return frozenset() if period is None else frozenset(range(period - 1, num_layers, period))
