"""Calls found in text, the same however the text was cut."""

import random
from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest
from hasten.api.text.answer_plan import AnswerParser
from hasten.api.text.reasoning import ReasoningParser
from hasten.api.text.tool_parsers import TOOL_PARSERS, parser_for_template
from hasten.api.text.tool_parsers.events import (
    CallArguments,
    CallBegin,
    Content,
    Event,
    TextParser,
    joined,
)
from hasten.api.text.tool_parsers.forced import NamedParser, RequiredParser
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.timing import assert_linear
from tests.helpers.transcripts import NUM_TRANSCRIPTS, transcripts

PARSERS: dict[str, Callable[[], TextParser]] = {**TOOL_PARSERS, "required": RequiredParser}
MARKERS = ("<tool_call>", "</tool_call>", "<think>", "</think>", "[TOOL_CALLS]", "[ARGS]")
PIECES = (*MARKERS, '{"name": "f"', ', "arguments": {', *'{}[];"\\: \nxé')


def parse(kind: str, pieces: Sequence[str], *, thinks: bool = True) -> list[Event]:
    parser = AnswerParser(ReasoningParser() if thinks else None, PARSERS[kind]())
    events = [event for piece in pieces for event in parser.push(piece)]
    return joined(events + parser.finish())


@pytest.mark.parametrize("kind", sorted(PARSERS))
def test_every_cut_of_transcripts_in_two_gives_the_same(kind: str) -> None:
    texts = [text for each, text in transcripts() if each == kind]
    assert len(texts) == NUM_TRANSCRIPTS // len(PARSERS)
    for text in texts:
        whole = parse(kind, [text])
        # Characters one by one show each state of the parser once; a cut then is only a pause.
        assert parse(kind, list(text)) == whole, text
        for cut in range(1, len(text)):
            assert parse(kind, [text[:cut], text[cut:]]) == whole, (text, cut)


def test_a_sample_of_cuts_in_three_gives_the_same() -> None:
    rng = random.Random(7)
    for kind, text in transcripts():
        whole = parse(kind, [text])
        for _ in range(5):
            a, b = sorted(rng.randint(0, len(text)) for _ in range(2))
            assert parse(kind, [text[:a], text[a:b], text[b:]]) == whole, (kind, text, a, b)


def call(name: str, arguments: str) -> list[Event]:
    return [CallBegin(name), CallArguments(arguments)]


@pytest.mark.parametrize(
    ("kind", "text", "events"),
    [
        ("hermes", "no call \n", [Content("no call \n")]),
        (
            "hermes",
            'Sure \n<tool_call>\n{"name": "f", "arguments": {"a": "}\\""}}\n</tool_call>\n'
            '<tool_call>{"arguments": [1], "name": "g"}</tool_call>\n',
            [Content("Sure"), *call("f", '{"a": "}\\""}'), *call("g", "[1]")],
        ),
        ("hermes", '<tool_call>{"name": "f"}</tool_call>!', [*call("f", "{}"), Content("!")]),
        ("hermes", "<tool_call>what</tool_call>", [Content("what")]),
        ("hermes", '<tool_call>{"x": 1}</tool_call>', [Content('{"x": 1}')]),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a"', call("f", '{"a"')),
        ("hermes", '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}', call("f", '{"a": 1}')),
        ("hermes", "1 <tool_ca", [Content("1 <tool_ca")]),
        ("hermes", "<tool_call>", []),
        (
            "llama3_json",
            '{"name": "f", "parameters": {"a": 1}}; {"name": "g", "parameters": {}}',
            [*call("f", '{"a": 1}'), *call("g", "{}")],
        ),
        ("llama3_json", ' Hi {"name": "f"}', [Content(' Hi {"name": "f"}')]),
        ("llama3_json", '{"a": 1} is JSON', [Content('{"a": 1} is JSON')]),
        (
            "mistral",
            'ok [TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}}, {"name": "g"}]',
            [Content("ok"), *call("f", '{"a": 1}'), *call("g", "{}")],
        ),
        (
            "mistral",
            '[TOOL_CALLS]f[ARGS]{"a": [1]}[TOOL_CALLS]g{"b": 2}',
            [*call("f", '{"a": [1]}'), *call("g", '{"b": 2}')],
        ),
        (
            "required",
            '[{"name": "f", "parameters": {"a": 1}}, {"name": "g", "parameters": {}}]',
            [*call("f", '{"a": 1}'), *call("g", "{}")],
        ),
    ],
)
def test_what_is_found(kind: str, text: str, events: list[Event]) -> None:
    assert parse(kind, [text], thinks=False) == events


def test_arguments_of_a_named_function() -> None:
    parser = NamedParser("f")
    events = [*parser.push('{"a"'), *parser.push(": 1}"), *parser.finish()]
    assert joined(events) == call("f", '{"a": 1}')


def test_arguments_are_shown_as_they_come() -> None:
    parser = PARSERS["hermes"]()
    shown = joined(parser.push('<tool_call>{"name": "f", "arguments": {"long": "and lon'))
    assert shown == call("f", '{"long": "and lon')


@settings(deadline=None)
@given(
    st.sampled_from(sorted(PARSERS)),
    st.lists(st.sampled_from(PIECES), max_size=30),
    st.lists(st.integers(0, 300), max_size=5),
)
def test_no_text_breaks_a_parser(kind: str, pieces: list[str], cuts: list[int]) -> None:
    text = "".join(pieces)
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    cut_up = [text[a:b] for a, b in pairwise(edges)]
    assert parse(kind, cut_up) == parse(kind, [text])


@pytest.mark.parametrize("kind", sorted(PARSERS))
@pytest.mark.parametrize("unit", ['<tool_call>{"name": "', "[TOOL_CALLS]", '{"x": [', "<tool_call"])
def test_time_is_linear(kind: str, unit: str) -> None:
    assert_linear(lambda num_units: parse(kind, [unit * num_units]), 100)


@pytest.mark.parametrize(
    ("template", "parser"),
    [
        ("{{ tools }} <tool_call>", "hermes"),
        ("[TOOL_CALLS]", "mistral"),
        ("<|python_tag|>", "llama3_json"),
        ("plain", "hermes"),
    ],
)
def test_the_template_says_how_calls_are_written(template: str, parser: str) -> None:
    assert parser_for_template(template) == parser
