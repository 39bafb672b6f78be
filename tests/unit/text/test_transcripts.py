"""Two hundred transcripts cut in two and three: whatever the cut, clients see the same.

Of the detokeniser, the stop matcher, and both with the parsers behind them, as an answer passes
them; `test_tool_parsers.py` does it for the parsers alone.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from hasten.api.text.answer_plan import AnswerParser
from hasten.api.text.detokenizer import Detokenizer
from hasten.api.text.reasoning import ReasoningParser
from hasten.api.text.sample_text import SampleText, StopRules
from hasten.api.text.stop import StopMatcher
from hasten.api.text.tool_parsers import TOOL_PARSERS
from hasten.api.text.tool_parsers.events import Event, joined
from hasten.api.text.tool_parsers.forced import RequiredParser
from hasten.core.messages import TokenOutput

from tests.helpers.fake_engine import ByteTokenizer
from tests.helpers.transcripts import transcripts

STOPS = ('"name": "db', "</tool_call>]", "ça Sure", "\n\n", "Oslo: in Oslo:")
PARSERS = {**TOOL_PARSERS, "required": RequiredParser}
VOCABULARY = ByteTokenizer()


class Pieces:
    """A vocabulary whose token i is the i-th piece."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._pieces = pieces

    def token_bytes(self, token_id: int) -> bytes:
        return self._pieces[token_id]


def detokenized(pieces: Sequence[bytes]) -> str:
    detokenizer = Detokenizer(Pieces(pieces))
    shown = [detokenizer.push(i) for i in range(len(pieces))]
    return "".join([*shown, detokenizer.finish()])


def matched(pieces: Sequence[str]) -> tuple[str, str | None]:
    matcher = StopMatcher(STOPS)
    shown = "".join([*map(matcher.push, pieces), matcher.finish()])
    return shown, matcher.matched


def in_two(length: int) -> Iterator[tuple[int, int]]:
    return ((cut, length) for cut in range(length + 1))


def in_three(length: int, rng: random.Random, count: int) -> Iterator[tuple[int, int]]:
    for _ in range(count):
        a, b = sorted(rng.randint(0, length) for _ in range(2))
        yield a, b


def test_detokenised_alike() -> None:
    rng = random.Random(1)
    for _, text in transcripts():
        data = text.encode()
        for a, b in (*in_two(len(data)), *in_three(len(data), rng, 5)):
            assert detokenized([data[:a], data[a:b], data[b:]]) == text


def test_stopped_alike() -> None:
    rng = random.Random(2)
    stops = set[str | None]()
    for _, text in transcripts():
        whole = matched([text])
        stops.add(whole[1])
        assert matched(list(text)) == whole
        for a, b in (*in_two(len(text)), *in_three(len(text), rng, 5)):
            assert matched([text[:a], text[a:b], text[b:]]) == whole, (text, a, b)
    assert len(stops) > 3  # otherwise it would prove little


def answered(kind: str, steps: Sequence[bytes]) -> tuple[list[Event], str | None]:
    """What a client is shown of tokens that are bytes and come in these steps, and why it ended."""
    sample = SampleText(VOCABULARY, StopRules(STOPS))
    parser = AnswerParser(ReasoningParser(), PARSERS[kind]())
    events: list[Event] = []
    for i, step in enumerate(steps):
        reason = "length" if i == len(steps) - 1 else None
        output = TokenOutput(request_id="r", token_ids=list(step), finish_reason=reason)
        delta = sample.push(output)
        events += parser.push(delta.text)
        if delta.finish_reason is not None:
            return joined(events + parser.finish()), delta.finish_reason
    raise AssertionError("an answer without an end")


def test_answered_alike() -> None:
    rng = random.Random(3)
    for kind, text in transcripts():
        data = text.encode()
        whole = answered(kind, [data])
        assert answered(kind, [bytes([byte]) for byte in data] or [b""]) == whole
        for a, b in in_three(len(data), rng, 10):
            assert answered(kind, [data[:a], data[a:b], data[b:]]) == whole, (kind, text, a, b)
