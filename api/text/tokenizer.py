"""The tokeniser of a model: text to token ids and back, and what a chat needs to know of it.

Wraps the `tokenizers` library, loaded from a model directory, a `tokenizer.json` or a GGUF file
(built from its vocabulary once, then kept in the cache folder). Not here: rendering chat templates
(`chat_template`), incremental text (`detokenizer`).
Exercised by `pytest tests/unit/text/test_tokenizer.py`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hasten.api.text.gguf_tokenizer import SPACE, build_tokenizer
from hasten.core.loading import LoadError, locate_model
from hasten.core.loading.cache import cache_folder, write_atomically
from hasten.core.loading.fields import Fields, read_json
from hasten.core.loading.gguf_file import GGUFFile, open_gguf
from hasten.core.loading.locate import user_path
from tokenizers import Tokenizer as RustTokenizer

TOKENIZER_FILE = "tokenizer.json"
GGUF_BUILD_VERSION = 1
"""Part of the cache key: raise it when `gguf_tokenizer` changes what it builds."""


@dataclass(frozen=True, slots=True)
class TokenizerInfo:
    """What a model's files say around its vocabulary; None where they say nothing."""

    bos_token: str | None = None
    eos_token: str | None = None
    pad_token: str | None = None
    chat_template: str | None = None


class Tokenizer:
    """Text to ids and back. Safe to use from several threads."""

    def __init__(self, rust: RustTokenizer, info: TokenizerInfo, where: str) -> None:
        # Files saved after calibration runs carry their truncation along.
        rust.no_truncation()
        rust.no_padding()
        self.info = info
        self._rust = rust
        self._decoder = _TokenDecoder.of(rust, where)
        self._added = rust.get_added_tokens_decoder()
        self.special_token_ids = frozenset(
            token_id for token_id, token in self._added.items() if token.special
        )
        self._bytes: dict[int, bytes] = {}

    @property
    def vocab_size(self) -> int:
        """Ids run from 0 to here; a model's logits may be wider (padding)."""
        return self._rust.get_vocab_size(with_added_tokens=True)

    @property
    def chat_template(self) -> str | None:
        return self.info.chat_template

    @property
    def bos_token_id(self) -> int | None:
        return self.id_of(self.info.bos_token)

    @property
    def eos_token_id(self) -> int | None:
        return self.id_of(self.info.eos_token)

    def to_json(self) -> str:
        """The contents of a `tokenizer.json` that gives this tokeniser."""
        return self._rust.to_str()

    def id_of(self, token: str | None) -> int | None:
        """The id of a token given as the vocabulary writes it, None when it is not one."""
        return None if token is None else self._rust.token_to_id(token)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`, in which special tokens may be written out.

        `add_special_tokens` adds what the model's texts begin and end with (often BOS).
        """
        # Not `encode`, which holds the interpreter's lock all the while, and so stops every other
        # thread for seconds when a text is long.
        (encoding,) = self._rust.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        ids: list[int] = encoding.ids
        return ids

    def decode(self, token_ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """The text of a whole sequence, invalid UTF-8 replaced by U+FFFD.

        The space that a SentencePiece model puts before every text is removed again.
        """
        parts = [
            self.token_bytes(token_id)
            if skip_special_tokens or token_id not in self.special_token_ids
            else self._added[token_id].content.encode()
            for token_id in token_ids
        ]
        text = b"".join(parts).decode("utf-8", errors="replace")
        return text.removeprefix(" ") if self._decoder.strips_first_space else text

    def token_bytes(self, token_id: int) -> bytes:
        """What a token adds to the text, in UTF-8; nothing for special and for unknown ids."""
        found = self._bytes.get(token_id)
        if found is None:
            found = self._bytes[token_id] = self._compute_bytes(token_id)
        return found

    def _compute_bytes(self, token_id: int) -> bytes:
        if token_id in self.special_token_ids:
            return b""
        if token_id in self._added:
            return self._added[token_id].content.encode()
        token = self._rust.id_to_token(token_id)
        return b"" if token is None else self._decoder.to_bytes(token)


@dataclass(frozen=True, slots=True)
class _TokenDecoder:
    """How a vocabulary writes bytes: byte-level (as GPT-2), or as SentencePiece does."""

    is_byte_level: bool
    strips_first_space: bool

    @classmethod
    def of(cls, rust: RustTokenizer, where: str) -> _TokenDecoder:
        decoder = None if rust.decoder is None else json.loads(rust.decoder.__getstate__())
        steps = {} if decoder is None else {step["type"]: step for step in _steps(decoder)}
        if "ByteLevel" in steps:
            return cls(is_byte_level=True, strips_first_space=False)
        if steps.keys() <= {"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"} and steps:
            prepends = steps.get("Metaspace", {}).get("prepend_scheme", "never") != "never"
            return cls(is_byte_level=False, strips_first_space=prepends or "Strip" in steps)
        kinds = ", ".join(steps) or "none"
        raise LoadError(f"{where}: field 'decoder' is {kinds}, which is not supported")

    def to_bytes(self, token: str) -> bytes:
        if self.is_byte_level:
            try:
                return bytes(_BYTE_OF_CHARACTER[character] for character in token)
            except KeyError:
                return token.encode()
        if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            return bytes.fromhex(token[3:5])
        return token.replace(SPACE, " ").encode()


def _steps(decoder: dict[str, Any]) -> list[dict[str, Any]]:
    steps: list[dict[str, Any]] = decoder.get("decoders", [decoder])
    return steps


def _byte_characters() -> dict[str, int]:
    """The character that stands for each byte in byte-level vocabularies.

    Printable Latin-1 bytes stand for themselves; the others get the characters from U+0100 on, in
    order. Source: GPT-2 (Radford et al., 2019), its published encoder.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    table = {chr(byte): byte for byte in sorted(printable)}
    table.update({chr(0x100 + idx): byte for idx, byte in enumerate(others)})
    return table


_BYTE_OF_CHARACTER = _byte_characters()


def load_tokenizer(reference: str) -> Tokenizer:
    """The tokeniser of `embedded`, a model directory, a `tokenizer.json` or a .gguf file.

    Raises LoadError naming the file or field that is wrong.
    """
    path = user_path(reference)
    if path.suffix == ".json":
        return Tokenizer(_read_rust(path), _directory_info(path.parent), str(path))
    location = locate_model(reference)
    if location.is_gguf:
        return _load_gguf(open_gguf(location.path))
    file = location.path / TOKENIZER_FILE
    return Tokenizer(_read_rust(file), _directory_info(location.path), str(file))


def _read_rust(path: Path) -> RustTokenizer:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise LoadError(f"{path}: {error.strerror or error}") from error
    try:
        return RustTokenizer.from_buffer(content)
    except Exception as error:
        raise LoadError(f"{path}: not a valid tokeniser: {error}") from error


def _load_gguf(file: GGUFFile) -> Tokenizer:
    info = _gguf_info(file)
    key = hashlib.sha256(GGUF_BUILD_VERSION.to_bytes(4, "little") + file.header).hexdigest()
    cached = cache_folder() / "tokenizers" / f"{key}.json"
    try:
        return Tokenizer(_read_rust(cached), info, str(cached))
    except LoadError:
        # Not there yet, or damaged: both are mended by building it.
        rust = build_tokenizer(file)
        write_atomically(cached, rust.to_str().encode())
        return Tokenizer(rust, info, str(file.path))


def _gguf_info(file: GGUFFile) -> TokenizerInfo:
    fields = Fields(file.metadata, str(file.path))
    tokens = fields.strings("tokenizer.ggml.tokens")

    def token(name: str) -> str | None:
        key = f"tokenizer.ggml.{name}_token_id"
        if key not in fields:
            return None
        token_id = fields.integer(key, minimum=0)
        return tokens[token_id] if token_id < len(tokens) else None

    key = "tokenizer.chat_template"
    template = fields.text(key) if key in fields else None
    return TokenizerInfo(token("bos"), token("eos"), token("padding"), template)


def _directory_info(folder: Path) -> TokenizerInfo:
    path = folder / "tokenizer_config.json"
    fields = read_json(path) if path.is_file() else Fields({}, str(path))
    return TokenizerInfo(
        _token_text(fields, "bos_token"),
        _token_text(fields, "eos_token"),
        _token_text(fields, "pad_token"),
        _chat_template(folder, fields),
    )


def _token_text(fields: Fields, name: str) -> str | None:
    """A token as its text, or as an object that holds it."""
    if name not in fields:
        return None
    if isinstance(fields.raw(name), dict):
        return fields.nested(name).text("content")
    return fields.text(name)


def _chat_template(folder: Path, config: Fields) -> str | None:
    """The template, from the first place that has one: its own files, then the configuration."""
    jinja, in_json = folder / "chat_template.jinja", folder / "chat_template.json"
    if jinja.is_file():
        return _read_text(jinja)
    fields = read_json(in_json) if in_json.is_file() else config
    if "chat_template" not in fields:
        return None
    if isinstance(fields.raw("chat_template"), list):
        return _default_template(fields)
    return fields.text("chat_template")


def _default_template(fields: Fields) -> str | None:
    """Of several named templates, the one called `default`."""
    for entry in fields.raw("chat_template"):
        if isinstance(entry, dict) and entry.get("name") == "default":
            return Fields(entry, fields.where, "chat_template.").text("template")
    return None


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise LoadError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise LoadError(f"{path}: not UTF-8") from error
