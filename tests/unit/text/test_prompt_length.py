"""Prompts that can never fit are refused for little."""

import pytest
from hasten.api.text.prompt_length import PIECE_CHARS, encode_prompt
from hasten.core.params import InvalidParameterError

from tests.helpers.fake_engine import ByteTokenizer


class CountingTokenizer(ByteTokenizer):
    """Spaces are free, and every character that is looked at is counted."""

    def __init__(self) -> None:
        self.num_chars = 0

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        self.num_chars += len(text)
        return super().encode(text.replace(" ", ""), add_special_tokens=add_special_tokens)


def test_the_limit_is_exact_for_texts_of_usual_length() -> None:
    tokenizer = ByteTokenizer()
    assert len(encode_prompt(tokenizer, "x" * 98, 100)) == 99
    with pytest.raises(InvalidParameterError, match=r"has 100 tokens; .* is 100"):
        encode_prompt(tokenizer, "x" * 99, 100)
    assert len(encode_prompt(tokenizer, "x" * 99, 100, add_special_tokens=False)) == 99


def test_a_hopeless_text_is_read_only_as_far_as_needed() -> None:
    tokenizer = CountingTokenizer()
    with pytest.raises(InvalidParameterError, match="at least") as caught:
        encode_prompt(tokenizer, "x" * 50 * PIECE_CHARS, 1000)
    assert caught.value.field == "prompt"
    assert tokenizer.num_chars == PIECE_CHARS


def test_a_long_text_of_few_tokens_passes() -> None:
    text = "x" + " " * 3 * PIECE_CHARS + "y"
    assert encode_prompt(CountingTokenizer(), text, 10) == ByteTokenizer().encode("xy")
