"""Ways to an end: found for what people write schemas of, and taken in time."""

import json
from typing import Any

import pytest
from hasten.api.structured.closing import MAX_EVERY, MIN_MARGIN, Closing, completion
from hasten.api.structured.compiler import byte_vocabulary
from hasten.api.structured.json_schema import schema_grammar

VOCABULARY = byte_vocabulary()
FORMATS = ("date-time", "date", "time", "email", "uuid", "ipv4", "uri", "hostname")


def way_behind(grammar: str, begun: str = "") -> str | None:
    matcher = VOCABULARY.matcher(grammar)
    assert matcher.try_consume_tokens(list(begun.encode())) == len(begun.encode())
    path = completion(VOCABULARY, matcher)
    return None if path is None else begun + bytes(path).decode()


@pytest.mark.parametrize(
    ("schema", "begun"),
    [
        ({"type": "object"}, '{"a": [{"b": "some te'),
        ({}, '[[[[1, {"x": tr'),
        ({"type": "array", "items": {"type": "integer"}, "minItems": 9}, "[1"),
        ({"type": "string", "minLength": 20}, '"ab'),
        ({"type": "number", "minimum": 1234.5}, ""),
        ({"type": "object", "patternProperties": {"^x-[a-z]+$": {}}, "minProperties": 2}, "{"),
        *[({"type": "string", "format": name}, "") for name in FORMATS],
    ],
)
def test_a_way_to_the_end_of_json(schema: Any, begun: str) -> None:
    text = way_behind(schema_grammar(schema), begun)
    assert text is not None
    json.loads(text)


def test_the_way_through_recursion_ends() -> None:
    node = {
        "type": "object",
        "properties": {
            "v": {"type": "number"},
            "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]},
        },
        "required": ["v", "next"],
        "additionalProperties": False,
    }
    begun = '{"v":1,"next":' * 5
    assert way_behind(schema_grammar(node), begun) == begun + "null" + "}" * 5


def test_no_way_is_no_closing() -> None:
    # No character ends the text that could not as well go on.
    assert way_behind('start: /[^#]*/ "###" /[^#]*/ "end"') is None


def test_rows_are_ruled_once_the_limit_is_near() -> None:
    grammar = schema_grammar({"type": "array", "items": {"type": "string"}})
    matcher = VOCABULARY.matcher(grammar)
    matcher.try_consume_tokens(list(b'["abc'))
    closing = Closing(completion(VOCABULARY, VOCABULARY.matcher(grammar)), max_tokens=1000)
    asked = [closing.next_token(VOCABULARY, matcher, n) for n in range(1000)]
    # Two closing bytes, the end, and a margin; it is not looked at every position.
    first = next(n for n, token_id in enumerate(asked) if token_id is not None)
    assert MIN_MARGIN + 3 <= 1000 - first <= MIN_MARGIN + 3 + MAX_EVERY
    assert asked[first : first + 2] == list(b'"]')
    assert set(asked[first + 2 :]) == {VOCABULARY.eos_token_id}


def test_a_wrong_draft_leaves_nothing_behind() -> None:
    """Positions behind it are asked for again, in the state that they really have."""
    grammar = schema_grammar({"type": "array", "items": {"type": "string"}})
    shortest = completion(VOCABULARY, VOCABULARY.matcher(grammar))
    right, drafted = VOCABULARY.matcher(grammar), VOCABULARY.matcher(grammar)
    right.try_consume_tokens(list(b'["abc'))
    drafted.try_consume_tokens(list(b'["abc",["'))
    plain, disturbed = (Closing(shortest, max_tokens=200) for _ in range(2))
    expected = [plain.next_token(VOCABULARY, right, n) for n in range(200)]
    for n in range(200):
        for ahead in range(min(9, 200 - n)):
            matcher = drafted if ahead else right
            token_id = disturbed.next_token(VOCABULARY, matcher, n + ahead)
            assert ahead or token_id == expected[n]


def test_a_limit_that_just_fits_is_kept_and_a_smaller_one_is_none() -> None:
    grammar = schema_grammar({"type": "string", "minLength": 5})
    shortest = completion(VOCABULARY, VOCABULARY.matcher(grammar))
    assert shortest is not None
    matcher = VOCABULARY.matcher(grammar)
    fits = Closing(shortest, max_tokens=len(shortest) + 1)
    assert fits.next_token(VOCABULARY, matcher, 0) == shortest[0]
    assert Closing(shortest, max_tokens=len(shortest)).next_token(VOCABULARY, matcher, 0) is None


def test_at_an_end_the_end_is_asked_for() -> None:
    grammar = schema_grammar({"type": "integer"})
    matcher = VOCABULARY.matcher(grammar)
    matcher.try_consume_tokens(list(b"123"))
    assert Closing([1], max_tokens=8).next_token(VOCABULARY, matcher, 6) == VOCABULARY.eos_token_id


def test_few_tokens_have_a_small_margin() -> None:
    grammar = schema_grammar({"type": "integer"})
    closing = Closing([1], max_tokens=8)
    matcher = VOCABULARY.matcher(grammar)
    assert [closing.next_token(VOCABULARY, matcher, n) for n in range(3)] == [None] * 3
