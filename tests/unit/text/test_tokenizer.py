"""The tokeniser of a model directory: text both ways, templates in all their places, refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hasten.api.text.tokenizer import Tokenizer, load_tokenizer
from hasten.core.loading import LoadError
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as RustTokenizer


def byte_level() -> RustTokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    rust = RustTokenizer(models.BPE({token: idx for idx, token in enumerate(alphabet)}, []))
    rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    rust.decoder = decoders.ByteLevel()
    rust.add_special_tokens([AddedToken("<eos>", normalized=False)])
    rust.add_tokens([AddedToken("<tööl>", normalized=False)])
    return rust


def save(folder: Path, rust: RustTokenizer | None = None, **config: Any) -> Path:
    (rust or byte_level()).save(str(folder / "tokenizer.json"))
    if config:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_tokenizer(str(save(tmp_path_factory.mktemp("model"))))


@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=60))
def test_any_text_comes_back(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert b"".join(map(tokenizer.token_bytes, ids)) == text.encode()


def test_added_tokens_are_their_own_text(tokenizer: Tokenizer) -> None:
    special, shown = tokenizer.id_of("<eos>"), tokenizer.id_of("<tööl>")
    assert special is not None
    assert shown is not None
    assert tokenizer.special_token_ids == {special}
    assert tokenizer.token_bytes(special) == b""
    assert tokenizer.token_bytes(shown) == "<tööl>".encode()
    ids = tokenizer.encode("a<tööl><eos>")
    assert tokenizer.decode(ids) == "a<tööl>"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "a<tööl><eos>"


def test_invalid_utf8_is_replaced(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("😀")
    assert tokenizer.decode(ids[:2]) == "\ufffd"
    assert tokenizer.decode([*ids[:2], *tokenizer.encode("a")]) == "\ufffda"


def test_ids_outside_the_vocabulary_are_no_text(tokenizer: Tokenizer) -> None:
    assert tokenizer.token_bytes(10**6) == b""
    assert tokenizer.id_of("nothing like that") is None
    assert tokenizer.id_of(None) is None


def test_saved_truncation_and_padding_are_dropped(tmp_path: Path) -> None:
    rust = byte_level()
    rust.enable_truncation(4)
    rust.enable_padding(length=16)
    tokenizer = load_tokenizer(str(save(tmp_path, rust)))
    assert len(tokenizer.encode("0123456789")) == 10


def test_sentencepiece_style_files(tmp_path: Path) -> None:
    vocabulary = {"<unk>": 0, "▁a": 1, "b": 2, "<0xC3>": 3, "<0xA9>": 4, "▁": 5, "a": 6}
    rust = RustTokenizer(
        models.BPE(vocabulary, [("▁", "a")], byte_fallback=True, unk_token="<unk>")
    )
    rust.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    rust.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer = load_tokenizer(str(save(tmp_path, rust)))
    ids = tokenizer.encode("ab aé")
    assert [tokenizer.token_bytes(idx) for idx in ids] == [b" a", b"b", b" a", b"\xc3", b"\xa9"]
    assert tokenizer.decode(ids) == "ab aé"


def test_special_tokens_in_both_spellings(tmp_path: Path) -> None:
    folder = save(tmp_path, bos_token={"content": "<eos>", "lstrip": False}, eos_token="<eos>")
    tokenizer = load_tokenizer(str(folder))
    assert tokenizer.info.bos_token == "<eos>"
    assert tokenizer.eos_token_id == tokenizer.id_of("<eos>")
    assert tokenizer.info.pad_token is None


def test_the_template_comes_from_the_first_place_that_has_one(tmp_path: Path) -> None:
    folder = save(tmp_path)
    assert load_tokenizer(str(folder)).chat_template is None
    save(tmp_path, chat_template="of the configuration")
    assert load_tokenizer(str(folder)).chat_template == "of the configuration"
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": "of the json"}))
    assert load_tokenizer(str(folder)).chat_template == "of the json"
    (folder / "chat_template.jinja").write_text("of the file")
    assert load_tokenizer(str(folder)).chat_template == "of the file"


def test_of_several_templates_the_default_one(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    assert load_tokenizer(str(save(tmp_path, chat_template=named))).chat_template == "d"
    assert load_tokenizer(str(save(tmp_path, chat_template=named[:1]))).chat_template is None


def test_a_tokenizer_json_by_itself(tmp_path: Path) -> None:
    save(tmp_path)
    assert load_tokenizer(str(tmp_path / "tokenizer.json")).encode("ab")


def test_what_is_wrong_is_named(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"tokenizer\.json: No such file"):
        load_tokenizer(str(tmp_path))
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0"}')
    with pytest.raises(LoadError, match=r"tokenizer\.json: not a valid tokeniser"):
        load_tokenizer(str(tmp_path))
    save(tmp_path, eos_token=7)
    with pytest.raises(LoadError, match=r"tokenizer_config\.json: field 'eos_token' must be"):
        load_tokenizer(str(tmp_path))


def test_a_decoder_of_another_kind_is_named(tmp_path: Path) -> None:
    rust = byte_level()
    rust.decoder = decoders.WordPiece()
    with pytest.raises(LoadError, match="'decoder' is WordPiece, which is not supported"):
        load_tokenizer(str(save(tmp_path, rust)))
