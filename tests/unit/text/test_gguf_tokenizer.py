"""Tokenisers from GGUF vocabularies, against frozen ids and slow oracles."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from hasten.api.text.gguf_tokenizer import build_tokenizer
from hasten.api.text.tokenizer import Tokenizer, TokenizerInfo, load_tokenizer
from hasten.core.loading import LoadError
from hasten.core.loading.gguf_file import GGUFFile
from hypothesis import given, settings
from hypothesis import strategies as st

FROZEN = [
    ("Hello world", "19556 905"),
    (
        "The quick brown fox's 3 jumps — over 12,345 lazy dogs?",
        "504 2365 6354 16438 506 216 35 27003 1841 690 216 33 34 28 35 36 37 23790 5046 47",
    ),
    ("中文字符と日本語", "28589 29184 36518 40562 116 7365 118 23274 115 40993 179 120 248"),
    (
        "👩\u200d👩\u200d👧\u200d👦 emoji 😀!",
        "10813 235 119 321 231 10813 235 119 321 231 10813 235 117 321 231 10813 235 116 649 "
        "33777 40303 218 17",
    ),
    (
        "def f(x):\n\treturn x  # two\n\n\n    pass\r\n",
        "1604 275 24 104 727 198 197 5406 1792 216 907 827 13272 1301 2738",
    ),
    ("<|im_start|>user\nHi<|im_end|>\n", "1 4093 198 26843 2 198"),
    ("e\u0301\u200bz\xa0end", "85 151 219 321 229 106 15442 486"),
    (" \n \t  lead and trail  ", "3717 216 197 216 1022 284 11231 256"),
    ("don't I'LL we've", "12420 982 339 23 16421 392 3543"),
    (
        "https://example.org/a_b?c=1&d=%20",
        "4687 1742 7434 30 2295 31 81 79 82 47 83 45 33 22 84 23446 34 32",
    ),
    (
        "naïve café, Größe, и кириллица",
        "3546 46494 37366 28 9171 7466 34878 85 28 29972 31338 7872 46879 12681 35420 32233 6511",
    ),
]
"""Texts and their ids from transformers 5.17 reading the same file (`gguf_file=`)."""

FROZEN_NUMBERS = [
    ("two  1 and   22", "11355 256 33 284 333 34 34"),
    ("½ of ², ٣", "16738 282 216 19133 28 216 164 113"),
]
"""Ids with the pre-tokeniser that the model was published with: what is numeric stands alone.
transformers drops that when it reads a GGUF."""


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HASTEN_CACHE", str(tmp_path_factory.mktemp("cache")))
        return load_tokenizer("embedded")


@pytest.mark.parametrize(("text", "token_ids"), FROZEN + FROZEN_NUMBERS)
def test_the_embedded_models_ids(embedded: Tokenizer, text: str, token_ids: str) -> None:
    expected = [int(token_id) for token_id in token_ids.split()]
    assert embedded.encode(text) == expected
    assert embedded.decode(expected, skip_special_tokens=False) == text


@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=80))
def test_any_text_comes_back(embedded: Tokenizer, text: str) -> None:
    # Some bytes have no token in this vocabulary (0x06, those of rare planes); they vanish.
    known = b"".join(embedded.token_bytes(idx) for idx in range(17, 300))
    expected = bytes(byte for byte in text.encode() if byte in known)
    ids = embedded.encode(text)
    decoded = embedded.decode(ids, skip_special_tokens=False)
    assert decoded == expected.decode("utf-8", errors="replace")


def test_what_the_embedded_file_says_around_its_vocabulary(embedded: Tokenizer) -> None:
    assert embedded.vocab_size == 49152
    assert embedded.info.eos_token == "<|im_end|>"
    assert (embedded.bos_token_id, embedded.eos_token_id) == (1, 2)
    assert embedded.special_token_ids == frozenset(range(17))
    assert embedded.chat_template is not None
    assert "<|im_start|>" in embedded.chat_template
    assert embedded.token_bytes(2) == b""
    assert embedded.token_bytes(49151) != b""
    assert embedded.token_bytes(49152) == b""


def test_the_second_load_reads_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HASTEN_CACHE", str(tmp_path))
    load_tokenizer("embedded")
    (cached,) = (tmp_path / "tokenizers").iterdir()
    monkeypatch.setattr("hasten.api.text.tokenizer.build_tokenizer", None)
    assert load_tokenizer("embedded").encode("Hello world") == [19556, 905]
    assert cached.suffix == ".json"


def test_a_damaged_cache_is_mended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HASTEN_CACHE", str(tmp_path))
    load_tokenizer("embedded")
    (cached,) = (tmp_path / "tokenizers").iterdir()
    whole = cached.read_bytes()
    cached.write_bytes(whole[: len(whole) // 2])
    assert load_tokenizer("embedded").encode("Hello world") == [19556, 905]
    assert cached.read_bytes() == whole


def test_a_cache_that_cannot_be_written_is_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    monkeypatch.setenv("HASTEN_CACHE", str(blocked))
    assert load_tokenizer("embedded").encode("Hello world") == [19556, 905]
    assert len(caplog.records) == 1
    assert "cannot write to the cache" in caplog.text


BYTES = [chr(code) for code in [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]]
BYTES += [chr(0x100 + idx) for idx in range(256 - len(BYTES))]


def byte_level(**changes: Any) -> GGUFFile:
    """A byte-level vocabulary of the 256 bytes and a few merges."""
    merges = ["h e", "l l", "he ll", "hell o", "1 2"]
    tokens = [*BYTES, *(merge.replace(" ", "") for merge in merges), "<s>", "</s>", "<tool>"]
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * (len(tokens) - 3) + [3, 3, 4],
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": len(tokens) - 3,
        **changes,
    }
    present = {key: value for key, value in metadata.items() if value is not None}
    return GGUFFile(Path("tiny.gguf"), present, {}, b"")


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        ("smollm", ["don", "'t", " ", "1", "2", "3", "4", ",", "  \r", "\n", "é", "!?", "\n "]),
        ("gpt-2", ["don", "'t", " 1234", ",", "  \r", "\n", "é", "!?", "\n "]),
        ("llama-bpe", ["don", "'t", " ", "123", "4", ",", "  \r\n", "é", "!?\n", " "]),
        ("qwen2", ["don", "'t", " ", "1", "2", "3", "4", ",", "  \r\n", "é", "!?\n", " "]),
    ],
)
def test_where_pre_tokenisers_cut(pre: str, pieces: list[str]) -> None:
    rust = build_tokenizer(byte_level(**{"tokenizer.ggml.pre": pre}))
    assert rust.pre_tokenizer is not None
    text = "don't 1234,  \r\né!?\n "
    cut = [text[start:end] for _, (start, end) in rust.pre_tokenizer.pre_tokenize_str(text)]
    assert cut == pieces


def test_the_default_pre_tokeniser_cuts_threes_of_digits() -> None:
    rust = build_tokenizer(byte_level(**{"tokenizer.ggml.pre": "default"}))
    assert rust.pre_tokenizer is not None
    text = "a+b 12345"
    cut = [text[start:end] for _, (start, end) in rust.pre_tokenizer.pre_tokenize_str(text)]
    assert cut == ["a", "+", "b", " ", "123", "45"]


def test_special_and_user_defined_tokens_are_found_whole() -> None:
    rust = build_tokenizer(byte_level())
    tokenizer = Tokenizer(rust, TokenizerInfo(), "tiny.gguf")
    ids = tokenizer.encode("hello<tool></s>")
    assert [rust.id_to_token(idx) for idx in ids] == ["hello", "<tool>", "</s>"]
    assert tokenizer.decode(ids) == "hello<tool>"


@pytest.mark.parametrize(
    ("changes", "starts"),
    [
        ({}, False),
        ({"tokenizer.ggml.add_bos_token": True}, True),
        ({"tokenizer.ggml.pre": "llama-bpe"}, True),
        ({"tokenizer.ggml.pre": "llama-bpe", "tokenizer.ggml.add_bos_token": False}, False),
    ],
)
def test_texts_begin_with_bos_where_the_file_says_so(changes: dict[str, Any], starts: bool) -> None:
    rust = build_tokenizer(byte_level(**changes))
    assert (rust.encode("hello").tokens[0] == "<s>") is starts
    assert rust.encode("hello", add_special_tokens=False).tokens == ["hello"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokenizer.ggml.model": None}, "'tokenizer.ggml.model' is missing"),
        ({"tokenizer.ggml.model": "bert"}, "'tokenizer.ggml.model' is 'bert'.*gpt2, llama"),
        ({"tokenizer.ggml.pre": "tekken"}, "'tokenizer.ggml.pre' is \"tekken\""),
        ({"tokenizer.ggml.tokens": None}, "'tokenizer.ggml.tokens' is missing"),
        ({"tokenizer.ggml.tokens": [1, 2]}, "must be a list of strings"),
        ({"tokenizer.ggml.tokens": ["a", "a"]}, "holds a token twice"),
        ({"tokenizer.ggml.merges": ["hello"]}, "holds 'hello', which is not two tokens"),
        ({"tokenizer.ggml.merges": ["q q"]}, "cannot be built"),
        ({"tokenizer.ggml.token_type": [1]}, "has 1 entries for"),
        ({"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.bos_token_id": 9999}, "is 9999"),
        ({"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.bos_token_id": None}, "is missing"),
    ],
)
def test_what_is_wrong_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(LoadError, match=message) as caught:
        build_tokenizer(byte_level(**changes))
    assert str(caught.value).startswith("tiny.gguf: ")


def test_a_missing_pre_tokeniser_is_the_default_and_said(caplog: pytest.LogCaptureFixture) -> None:
    build_tokenizer(byte_level(**{"tokenizer.ggml.pre": None}))
    assert "using 'default'" in caplog.text


PIECES = ["▁", "a", "b", "c", "ab", "bc", "▁a", "abc", "▁ab", "aa", "▁▁", "ca", "cab"]


def sentencepiece(
    scores: list[float] | None = None, changes: dict[str, Any] | None = None
) -> GGUFFile:
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    tokens = ["<unk>", "<s>", "</s>", *bytes_, *PIECES]
    own = scores or [-float(idx) for idx in range(len(PIECES))]
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0] * 259 + own,
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * len(PIECES),
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.bos_token_id": 1,
        **(changes or {}),
    }
    return GGUFFile(Path("tiny.gguf"), metadata, {}, b"")


def merge_slowly(text: str, scores: dict[str, float]) -> list[str]:
    """SentencePiece's own rule: join the neighbours whose piece scores best, leftmost first."""
    symbols = list("▁" + text.replace(" ", "▁")) if text else []
    while True:
        candidates = [
            (-scores[left + right], idx)
            for idx, (left, right) in enumerate(itertools.pairwise(symbols))
            if left + right in scores
        ]
        if not candidates:
            break
        _, at = min(candidates)
        symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
    known = [
        [symbol] if symbol in scores else [f"<0x{byte:02X}>" for byte in symbol.encode()]
        for symbol in symbols
    ]
    return list(itertools.chain.from_iterable(known))


@settings(max_examples=300, deadline=None)
@given(text=st.text(alphabet="abc é😀", max_size=16), order=st.permutations(range(len(PIECES))))
def test_sentencepiece_merges_as_its_rule_says(text: str, order: list[int]) -> None:
    scores = [-float(rank) for rank in order]
    rust = build_tokenizer(sentencepiece(scores))
    expected = merge_slowly(text, dict(zip(PIECES, scores, strict=True)))
    assert rust.encode(text, add_special_tokens=False).tokens == expected
    tokenizer = Tokenizer(rust, TokenizerInfo(), "tiny.gguf")
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_sentencepiece_begins_with_bos_and_a_space() -> None:
    rust = build_tokenizer(sentencepiece())
    assert rust.encode("ab").tokens == ["<s>", "▁ab"]
    bare = build_tokenizer(sentencepiece(changes={"tokenizer.ggml.add_space_prefix": False}))
    assert bare.encode("ab").tokens == ["<s>", "ab"]


def test_scores_must_be_there_for_each_token() -> None:
    with pytest.raises(LoadError, match="does not hold a number per token"):
        build_tokenizer(sentencepiece(changes={"tokenizer.ggml.scores": [1.0]}))
