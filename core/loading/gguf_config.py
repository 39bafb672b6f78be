"""GGUF metadata as a `DecoderConfig`.

Architectures `llama` (which Mistral and SmolLM2 use too), `qwen2` and `qwen3`; what they call
things is listed in the GGUF specification. Exercised by `pytest tests/unit/loading/test_gguf.py`.
"""

from __future__ import annotations

from hasten.core.loading.errors import LoadError
from hasten.core.loading.fields import Fields
from hasten.core.loading.gguf_file import GGUFFile
from hasten.core.models.config import MAX_HEAD_SIZE, MAX_LAYERS, DecoderConfig
from hasten.core.models.rope import LinearScaling, Scaling, divide_frequencies, make_rope
from hasten.kernels.ops import Rope
from hasten.quant.gguf_blocks import decode

ARCHITECTURES = ("llama", "qwen2", "qwen3")
ROPE_FREQS = "rope_freqs.weight"

SCALES = (
    "attention.scale",
    "attn_logit_softcapping",
    "embedding_scale",
    "final_logit_softcapping",
    "logit_scale",
    "residual_scale",
)
"""Factors that some relatives of these architectures put into their formulas."""

DEFAULT_ROPE_THETA = 10000.0
"""What the specification means by an absent `rope.freq_base`."""


def read_gguf_config(file: GGUFFile) -> DecoderConfig:
    """Raises LoadError naming the field that is missing, mistyped or not supported."""
    metadata = Fields(file.metadata, str(file.path))
    family = metadata.text("general.architecture")
    if family not in ARCHITECTURES:
        raise metadata.error(
            "general.architecture",
            f"is {family!r}, which is not supported; supported: {', '.join(ARCHITECTURES)}",
        )
    fields = _ArchitectureFields(file, metadata, family)
    try:
        return _read_config(file, fields, family)
    except LoadError:
        raise
    except ValueError as error:
        raise LoadError(f"{file.path}: {error}") from error


class _ArchitectureFields:
    """The metadata under the architecture's prefix, as in `llama.block_count`."""

    def __init__(self, file: GGUFFile, metadata: Fields, family: str) -> None:
        prefix = f"{family}."
        own = {
            key.removeprefix(prefix): value
            for key, value in file.metadata.items()
            if key.startswith(prefix)
        }
        self.own = Fields(own, str(file.path), prefix)
        self.all = metadata


def _read_config(file: GGUFFile, fields: _ArchitectureFields, family: str) -> DecoderConfig:
    own = fields.own
    _refuse_other_arithmetic(fields)
    hidden_size, num_heads = own.integer("embedding_length"), own.integer("attention.head_count")
    num_layers = own.integer("block_count", maximum=MAX_LAYERS)
    head_size = _head_size(own, hidden_size, num_heads)
    window = own.integer("attention.sliding_window") if "attention.sliding_window" in own else None
    return DecoderConfig(
        family=family,
        vocab_size=_vocab_size(file),
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
        rope=_rope(file, own, head_size),
        windows=(window,) * num_layers,
        tie_word_embeddings="output.weight" not in file.tensors,
        qkv_bias="blk.0.attn_q.bias" in file.tensors,
        o_bias="blk.0.attn_output.bias" in file.tensors,
        mlp_bias="blk.0.ffn_down.bias" in file.tensors,
        qk_norm=family == "qwen3",
    )


def _refuse_other_arithmetic(fields: _ArchitectureFields) -> None:
    """Variants that share the architecture's name but not its formulas, and files in parts."""
    fields.all.refuse_unless("split.count", (0, 1))
    fields.own.refuse_unless("expert_count", (0,))
    fields.own.refuse_unless("attention.causal", (True,))
    fields.own.refuse_unless("rope.scale_linear", (1.0,))
    for name in SCALES:
        if name in fields.own:
            raise fields.own.error(name, "is present, which is not supported")


def _head_size(own: Fields, hidden_size: int, num_heads: int) -> int:
    if "attention.key_length" in own:
        head_size = own.integer("attention.key_length", maximum=MAX_HEAD_SIZE)
        own.refuse_unless("attention.value_length", (head_size,))
        return head_size
    if hidden_size % num_heads or hidden_size // num_heads > MAX_HEAD_SIZE:
        raise own.error("attention.head_count", f"is {num_heads} for embeddings of {hidden_size}")
    return hidden_size // num_heads


def _vocab_size(file: GGUFFile) -> int:
    """The rows of the embedding: the metadata's own count is optional and often absent."""
    table = file.tensors.get("token_embd.weight")
    if table is None:
        raise LoadError(f"{file.path}: tensor 'token_embd.weight' is missing")
    return table.shape[0]


def _rope(file: GGUFFile, own: Fields, head_size: int) -> Rope:
    rotary_dim = head_size
    if "rope.dimension_count" in own:
        rotary_dim = own.integer("rope.dimension_count", maximum=head_size)
    theta = own.number("rope.freq_base") if "rope.freq_base" in own else DEFAULT_ROPE_THETA
    rope = make_rope(rotary_dim, theta, _scaling(own))
    factors = file.tensors.get(ROPE_FREQS)
    if factors is None:
        return rope
    divisors = decode(factors.type, factors.raw).dequantize().reshape(-1)
    if len(divisors) != len(rope.inv_freq) or not (divisors > 0).all():
        raise LoadError(f"{file.path}: tensor {ROPE_FREQS!r} does not hold a factor per frequency")
    return divide_frequencies(rope, divisors)


def _scaling(own: Fields) -> Scaling | None:
    """A factor without a type means linear scaling."""
    own.refuse_unless("rope.scaling.type", ("none", "linear"))
    kind = own.text("rope.scaling.type") if "rope.scaling.type" in own else "linear"
    if kind == "none" or "rope.scaling.factor" not in own:
        return None
    return LinearScaling(own.number("rope.scaling.factor"))
