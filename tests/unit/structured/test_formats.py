"""`response_format` and `structured_outputs`: which grammar, and which refusal."""

from typing import Any

import msgspec
import pytest
from hasten.api.structured.formats import ResponseFormat, StructuredOutputs
from hasten.core.params import InvalidParameterError

from tests.unit.structured.test_json_schema import takes


def response_format(**fields: Any) -> ResponseFormat:
    return msgspec.convert(fields, ResponseFormat)


def structured(**fields: Any) -> StructuredOutputs:
    return msgspec.convert(fields, StructuredOutputs)


def test_text_has_no_grammar() -> None:
    assert response_format(type="text").grammar() == ""


@pytest.mark.parametrize(
    "fields", [{"type": "json_object"}, {"type": "json_schema", "json_schema": {"name": "any"}}]
)
def test_any_object(fields: dict[str, Any]) -> None:
    grammar = response_format(**fields).grammar()
    assert takes(grammar, '{"a": [1, {"b": null}]}')
    assert not takes(grammar, "[1]")


def test_a_schema() -> None:
    schema = {"name": "n", "schema": {"type": "integer"}, "strict": True}
    assert takes(response_format(type="json_schema", json_schema=schema).grammar(), "-12")


@pytest.mark.parametrize(
    ("fields", "right", "wrong"),
    [
        ({"json": {"type": "integer"}}, "1", "x"),
        ({"json": '{"type": "integer"}'}, "1", "x"),
        ({"json_object": True}, "{}", "[]"),
        ({"json_object": True, "disable_any_whitespace": True}, '{"a":1}', '{"a": 1}'),
        ({"regex": r"\d{3}-[a-z]+"}, "123-ab", "12-ab"),
        ({"choice": ["yes", 'so "so"', "ü\n\U0001f600"]}, "ü\n\U0001f600", "no"),
        ({"choice": ["yes", 'so "so"']}, 'so "so"', "yes "),
        ({"grammar": 'start: "a" b*\nb: "b" | "c"\n'}, "abcb", "b"),
        ({"grammar": 'root ::= "a" digit+\ndigit ::= [0-9]\n'}, "a12", "a"),
    ],
)
def test_structured_outputs(fields: dict[str, Any], right: str, wrong: str) -> None:
    grammar = structured(**fields).compiled()
    assert takes(grammar, right)
    assert not takes(grammar, wrong)


@pytest.mark.parametrize(
    ("fields", "field", "reason"),
    [
        ({}, "structured_outputs", "exactly one"),
        ({"regex": "a", "choice": ["a"]}, "structured_outputs", "got regex, choice"),
        ({"json": "{"}, "structured_outputs.json", "no JSON"),
        ({"json": {"not": {}}}, "structured_outputs.json", "/not"),
        ({"regex": "a(?=b)"}, "structured_outputs.regex", "look-around"),
        ({"regex": "(" * 5}, "structured_outputs.regex", "unclosed"),
        (
            {"regex": "a", "disable_any_whitespace": True},
            "structured_outputs.disable_any_whitespace",
            "JSON only",
        ),
        ({"choice": []}, "structured_outputs.choice", "no text"),
        ({"choice": ["a", ""]}, "structured_outputs.choice", "empty"),
        ({"choice": [str(i) for i in range(2000)]}, "structured_outputs.choice", "at most"),
        ({"grammar": "start: foo"}, "structured_outputs.grammar", "unknown name"),
        ({"grammar": "start: <|im_end|>"}, "structured_outputs.grammar", "special token"),
        ({"grammar": "root ::= ("}, "structured_outputs.grammar", "no GBNF"),
        ({"grammar": '{"grammars": []}'}, "structured_outputs.grammar", "neither"),
        ({"grammar": 'start: %json {"multipleOf": 99999}'}, "structured_outputs.grammar", "%json"),
        ({"grammar": "start: a\n" + 'a: "a"\n' * 20_000}, "structured_outputs.grammar", "at most"),
    ],
)
def test_refusals_name_the_field(fields: dict[str, Any], field: str, reason: str) -> None:
    with pytest.raises(InvalidParameterError, match=reason) as error:
        structured(**fields).compiled()
    assert error.value.field == field


def test_a_schema_belongs_to_its_type() -> None:
    with pytest.raises(InvalidParameterError, match="is for the type 'json_schema'"):
        response_format(type="json_object", json_schema={"name": "n"}).grammar()
    with pytest.raises(InvalidParameterError, match="is required"):
        response_format(type="json_schema").grammar()
