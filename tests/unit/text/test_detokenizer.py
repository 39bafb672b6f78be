from itertools import pairwise

import pytest
from hasten.api.text.detokenizer import Detokenizer, text_of
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.timing import assert_linear


class Pieces:
    """A vocabulary whose token i is the i-th piece."""

    def __init__(self, pieces: list[bytes]) -> None:
        self.pieces = pieces

    def token_bytes(self, token_id: int) -> bytes:
        return self.pieces[token_id]


def streamed(vocabulary: Pieces) -> str:
    detokenizer = Detokenizer(vocabulary)
    parts = [detokenizer.push(i) for i in range(len(vocabulary.pieces))]
    return "".join([*parts, detokenizer.finish()])


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    borders = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[a:b] for a, b in pairwise(borders)]


@given(data=st.binary(max_size=40), cuts=st.lists(st.integers(0, 1000), max_size=20))
def test_any_cut_of_any_bytes_gives_the_same_text(data: bytes, cuts: list[int]) -> None:
    vocabulary = Pieces(cut(data, cuts))
    whole = data.decode("utf-8", errors="replace")
    assert streamed(vocabulary) == whole
    assert text_of(vocabulary, range(len(vocabulary.pieces))) == whole


@given(text=st.text(max_size=40))
def test_byte_by_byte_text_comes_out_whole(text: str) -> None:
    assert streamed(Pieces([bytes([byte]) for byte in text.encode()])) == text


def test_a_character_is_held_back_until_it_is_complete() -> None:
    detokenizer = Detokenizer(Pieces([b"a\xf0\x9f", b"\x98", b"\x80b"]))
    assert [detokenizer.push(i) for i in range(3)] == ["a", "", "\U0001f600b"]
    assert detokenizer.finish() == ""


@pytest.mark.parametrize("piece", [b"\xf0", b"\x80", b"\xf0\x9f\x98", "é".encode(), b"\xed\xa0"])
def test_time_is_linear(piece: bytes) -> None:
    assert_linear(lambda size: streamed(Pieces([piece] * size)), 1000)


def test_half_a_character_at_the_end_becomes_one_replacement() -> None:
    detokenizer = Detokenizer(Pieces([b"a\xf0\x9f\x98"]))
    assert detokenizer.push(0) == "a"
    assert detokenizer.finish() == "\ufffd"
