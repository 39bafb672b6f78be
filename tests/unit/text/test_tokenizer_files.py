"""A GGUF's tokeniser, written as files, is the same tokeniser."""

from __future__ import annotations

from pathlib import Path

import pytest
from hasten.api.text.tokenizer import load_tokenizer
from hasten.api.text.tokenizer_files import write_tokenizer
from hasten.core.loading import LoadError


def test_files_give_the_same_tokeniser(tmp_path: Path) -> None:
    try:
        tokenizer = load_tokenizer("embedded")
    except LoadError as error:
        pytest.skip(str(error))
    write_tokenizer(tokenizer, tmp_path)
    again = load_tokenizer(str(tmp_path / "tokenizer.json"))
    assert again.info == tokenizer.info
    assert again.info.chat_template
    for text in ("Hello, world!", "  naïve — 42\n\tdef f(): pass", "🌧️ <|im_start|>user"):
        assert again.encode(text) == tokenizer.encode(text)
