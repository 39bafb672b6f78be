"""The tokeniser that a GGUF file describes in its metadata.

Two models are known: `gpt2` (byte-level BPE, whose pre-tokeniser `tokenizer.ggml.pre` names) and
`llama` (SentencePiece BPE: pieces with scores, bytes for what no piece covers). What each name
means is fixed by llama.cpp and by the `tokenizer.json` of the models concerned.
Exercised by `pytest tests/unit/text/test_gguf_tokenizer.py`.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Iterator

from hasten.core.loading.errors import LoadError
from hasten.core.loading.fields import Fields
from hasten.core.loading.gguf_file import GGUFFile
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

logger = logging.getLogger(__name__)

MODEL_KEY = "tokenizer.ggml.model"
PRE_KEY = "tokenizer.ggml.pre"
SPACE = "\u2581"
"""How SentencePiece writes a space."""

_GPT2_SPLIT = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2_SPLIT = _LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")
_SPLITS = {
    "default": (r"[\p{P}\$\+<=>\^~\|]+", _GPT2_SPLIT, r"\p{N}+", "[0-9][0-9][0-9]"),
    "gpt-2": (_GPT2_SPLIT,),
    "llama-bpe": (_LLAMA3_SPLIT,),
    "qwen2": (_QWEN2_SPLIT,),
    "smollm": (r"\p{N}", _GPT2_SPLIT),
}
"""By pre-tokeniser: patterns that cut the text one after the other, matches standing alone."""


class _TokenType(enum.IntEnum):
    """`tokenizer.ggml.token_type`, as the specification numbers them."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4


def build_tokenizer(file: GGUFFile) -> Tokenizer:
    """Raises LoadError naming the field that is missing, damaged or not supported."""
    fields = Fields(file.metadata, str(file.path))
    kind = fields.text(MODEL_KEY)
    if kind not in _BUILDERS:
        raise fields.error(
            MODEL_KEY, f"is {kind!r}, which is not supported; supported: {', '.join(_BUILDERS)}"
        )
    tokens = fields.strings("tokenizer.ggml.tokens")
    if len(set(tokens)) != len(tokens):
        raise fields.error("tokenizer.ggml.tokens", "holds a token twice")
    try:
        tokenizer = _BUILDERS[kind](fields, tokens)
        _add_special_tokens(tokenizer, fields, tokens)
        _add_bos(tokenizer, fields, tokens)
    except LoadError:
        raise
    except Exception as error:
        raise LoadError(f"{file.path}: the tokeniser cannot be built: {error}") from error
    return tokenizer


def _build_byte_level(fields: Fields, tokens: list[str]) -> Tokenizer:
    pre = _pre_tokenizer_name(fields)
    merges = [_pair(fields, merge) for merge in fields.strings("tokenizer.ggml.merges")]
    vocabulary = {token: idx for idx, token in enumerate(tokens)}
    # Llama 3 takes a word that is a token as it is, even where no sequence of merges leads there.
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=pre == "llama-bpe"))
    if pre == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in _SPLITS[pre]]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _pair(fields: Fields, merge: str) -> tuple[str, str]:
    left, space, right = merge.partition(" ")
    if not (left and space and right) or " " in right:
        raise fields.error("tokenizer.ggml.merges", f"holds {merge!r}, which is not two tokens")
    return left, right


def _pre_tokenizer_name(fields: Fields) -> str:
    if PRE_KEY not in fields:
        logger.warning("%s: field %r is missing: using 'default'", fields.where, PRE_KEY)
        return "default"
    fields.refuse_unless(PRE_KEY, tuple(_SPLITS))
    return fields.text(PRE_KEY)


def _build_sentencepiece(fields: Fields, tokens: list[str]) -> Tokenizer:
    scores = fields.raw("tokenizer.ggml.scores")
    if not isinstance(scores, list) or len(scores) != len(tokens):
        raise fields.error("tokenizer.ggml.scores", "does not hold a number per token")
    unknown = _token_at(fields, tokens, "tokenizer.ggml.unknown_token_id")
    tokenizer = Tokenizer(
        models.BPE(
            {token: idx for idx, token in enumerate(tokens)},
            _merges_by_score(tokens, scores, _token_types(fields, tokens)),
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    prefix_key = "tokenizer.ggml.add_space_prefix"
    has_prefix = fields.boolean(prefix_key) if prefix_key in fields else True
    prepend = [normalizers.Prepend(SPACE)] if has_prefix else []
    tokenizer.normalizer = normalizers.Sequence([*prepend, normalizers.Replace(" ", SPACE)])
    strip = [decoders.Strip(" ", 1, 0)] if has_prefix else []
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    return tokenizer


def _merges_by_score(
    tokens: list[str], scores: list[float], types: list[int]
) -> list[tuple[str, str]]:
    """Merges in the order in which SentencePiece would make them: best resulting piece first."""
    normal = {
        token: score
        for token, score, kind in zip(tokens, scores, types, strict=True)
        if kind == _TokenType.NORMAL
    }
    merges = [(score, pair) for token, score in normal.items() for pair in _halves(token, normal)]
    merges.sort(key=lambda merge: merge[0], reverse=True)
    return [pair for _, pair in merges]


def _halves(token: str, known: dict[str, float]) -> Iterator[tuple[str, str]]:
    for cut in range(1, len(token)):
        left, right = token[:cut], token[cut:]
        if left in known and right in known:
            yield left, right


_BUILDERS = {"gpt2": _build_byte_level, "llama": _build_sentencepiece}


def _token_types(fields: Fields, tokens: list[str]) -> list[int]:
    key = "tokenizer.ggml.token_type"
    if key not in fields:
        return [_TokenType.NORMAL] * len(tokens)
    types = fields.integers(key)
    if len(types) != len(tokens):
        raise fields.error(key, f"has {len(types)} entries for {len(tokens)} tokens")
    return list(types)


def _token_at(fields: Fields, tokens: list[str], key: str) -> str | None:
    """The token whose id the field holds, None when the field is absent."""
    if key not in fields:
        return None
    token_id = fields.integer(key, minimum=0)
    if token_id >= len(tokens):
        raise fields.error(key, f"is {token_id}, but there are {len(tokens)} tokens")
    return tokens[token_id]


def _add_special_tokens(tokenizer: Tokenizer, fields: Fields, tokens: list[str]) -> None:
    """Control tokens are found whole in any text, and hidden in answers; user-defined are shown."""
    kinds = list(zip(tokens, _token_types(fields, tokens), strict=True))
    hidden = [token for token, kind in kinds if kind in (_TokenType.CONTROL, _TokenType.UNKNOWN)]
    shown = [token for token, kind in kinds if kind == _TokenType.USER_DEFINED]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in hidden])
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in shown])


def _add_bos(tokenizer: Tokenizer, fields: Fields, tokens: list[str]) -> None:
    """Begin texts with BOS where the file says so, or where its kind of model always does."""
    key = "tokenizer.ggml.add_bos_token"
    implied = fields.text(MODEL_KEY) == "llama" or (
        PRE_KEY in fields and fields.text(PRE_KEY) == "llama-bpe"
    )
    if not (fields.boolean(key) if key in fields else implied):
        return
    bos = _token_at(fields, tokens, "tokenizer.ggml.bos_token_id")
    if bos is None:
        raise fields.error("tokenizer.ggml.bos_token_id", "is missing, though texts begin with it")
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[bos, "$A"],
        pair=[bos, "$A", "$B"],
        special_tokens=[(bos, tokens.index(bos))],
    )
