"""Schemas to grammars: what may be written, and what is refused, with a pointer."""

from typing import Any

import pytest
from hasten.api.structured.compiler import byte_vocabulary
from hasten.api.structured.json_schema import SchemaError, schema_grammar
from hypothesis import given, settings
from hypothesis import strategies as st

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


def takes(grammar: str, text: str) -> bool:
    """Whether the whole text follows the grammar."""
    matcher = byte_vocabulary().matcher(grammar)
    data = list(text.encode())
    return matcher.try_consume_tokens(data) == len(data) and matcher.is_accepting()


@pytest.mark.parametrize(
    ("text", "is_valid"),
    [
        ('{"name": "Ann", "age": 3}', True),
        ('{"name":"Ann","age":3}', True),
        ('{\n  "name": "Ann",\n  "age": 3\n}', True),
        ('{"name":  "Ann","age":3}', False),  # white space is bounded
        ('{\n\n"name": "Ann","age":3}', False),
        ('{"age": 3, "name": "Ann"}', False),  # in the order of the schema
        ('{"name": "Ann"}', False),
        ('{"name": "Ann", "age": 151}', False),
        ('{"name": "Annabella", "age": 1}', False),
        ('{"name": "Ann", "age": 3, "x": 1}', False),
        ('{"name": "\U0001f600\\n", "age": 3}', True),
    ],
)
def test_what_a_schema_lets_be_written(text: str, is_valid: bool) -> None:
    assert takes(schema_grammar(PERSON), text) == is_valid


def test_true_takes_any_value() -> None:
    assert takes(schema_grammar(True), "[1, {}]")
    assert takes(schema_grammar(True, compact=True), "[1,{}]")


def test_compact_texts_have_no_white_space() -> None:
    grammar = schema_grammar(PERSON, compact=True)
    assert takes(grammar, '{"name":"Ann","age":3}')
    assert not takes(grammar, '{"name": "Ann","age":3}')


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"enum": ["a", 1, None]}, "null", '"b"'),
        ({"const": {"a": [1]}}, '{"a": [1]}', '{"a": [2]}'),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "null", "1"),
        ({"allOf": [{"type": "string"}, {"maxLength": 1}]}, '"a"', '"ab"'),
        ({"oneOf": [{"type": "string"}, {"type": "integer"}]}, "1", "1.5"),
        ({"type": "array", "items": {"type": "boolean"}, "minItems": 2}, "[true,false]", "[true]"),
        ({"prefixItems": [{"type": "integer"}], "items": False, "type": "array"}, "[1]", "[1,2]"),
        ({"type": "string", "pattern": "^[a-c]+$"}, '"abc"', '"abd"'),
        ({"type": "string", "format": "date"}, '"2026-02-03"', '"tomorrow"'),
        ({"type": "number", "multipleOf": 0.5}, "1.5", "1.4"),
        ({"type": "integer", "exclusiveMinimum": 5, "maximum": 7}, "6", "5"),
        (
            {"patternProperties": {"^x": {"type": "null"}}, "type": "object"},
            '{"xy":null}',
            '{"xy":1}',
        ),
        (
            {
                "$defs": {"n": {"type": "array", "items": {"$ref": "#/$defs/n"}}},
                "$ref": "#/$defs/n",
            },
            "[[],[[]]]",
            "[1]",
        ),
        ({"type": "array", "uniqueItems": False, "title": "t", "x-a": 1}, "[]", "{}"),
    ],
)
def test_keywords(schema: Any, right: str, wrong: str) -> None:
    grammar = schema_grammar(schema)
    assert takes(grammar, right)
    assert not takes(grammar, wrong)


@pytest.mark.parametrize(
    ("schema", "pointer", "reason"),
    [
        ({"properties": {"a": {"not": {}}}}, "/properties/a/not", "'not' is not supported"),
        ({"type": "array", "uniqueItems": True}, "/uniqueItems", "not supported"),
        ({"requierd": ["a"]}, "/requierd", "did you mean 'required'"),
        ({"properties": {"a/b": {"type": "string", "format": "x"}}}, "/properties/a~1b", "format"),
        ({"items": {"type": "string", "pattern": "(a"}, "type": "array"}, "/items", "unclosed"),
        ({"anyOf": [{"type": "null"}, {"type": "strng"}]}, "/anyOf/1", "strng"),
        ({"$ref": "http://example.com/x"}, "/$ref", "references into the schema itself"),
        ({"$ref": "#/$defs/x"}, "", "does not exist"),
        ({"$ref": "#"}, "", "allows no output"),
        ({"type": "integer", "minimum": 3, "maximum": 2}, "", "Unsatisfiable"),
        ({"properties": {"a": 5}}, "/properties/a", "a schema is an object"),
        ({"properties": 5}, "", "properties"),
        ({"required": 5}, "", "required"),
        ({"pattern": 5}, "", "string"),
        ({"enum": ["\ud800"]}, "", "no JSON"),
        ({"type": "array", "items": [{}]}, "/items", "prefixItems"),
        ({"x-guidance": {"lenient": True}, "not": {}}, "/x-guidance", "not known"),
        (False, "", "allows no output"),
        ({"multipleOf": 10007}, "/multipleOf", "at most"),
        ({"allOf": [{"multipleOf": 997}, {"multipleOf": 991}]}, "/allOf/1/multipleOf", "at most"),
    ],
)
def test_what_cannot_be_held_is_refused_with_a_pointer(
    schema: Any, pointer: str, reason: str
) -> None:
    with pytest.raises(SchemaError, match=reason.replace("(", r"\(")) as error:
        schema_grammar(schema)
    assert error.value.pointer == pointer


def test_optional_properties_are_bounded_and_required_ones_are_not() -> None:
    with pytest.raises(SchemaError, match="300 optional") as error:
        schema_grammar(wide(301))
    assert error.value.pointer == "/properties"
    required = wide(400)
    schema_grammar(required | {"required": list(required["properties"])})


KEYWORDS = (
    *("type", "enum", "$ref", "properties", "required", "items", "anyOf", "minLength", "pattern"),
    *("format", "multipleOf", "minimum", "maxItems", "$defs", "not", "additionalProperties"),
)
VALUES = st.recursive(
    st.sampled_from(
        [None, True, 0, -1, 3.5, 1e300, "string", "object", "#", "#/$defs/a", "(", "a+"]
    ),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", *KEYWORDS]), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(KEYWORDS), VALUES, max_size=4))
def test_any_schema_is_held_to_or_refused(schema: dict[str, Any]) -> None:
    try:
        byte_vocabulary().matcher(schema_grammar(schema))
    except SchemaError:
        return


def nested(depth: int) -> dict[str, Any]:
    return {"type": "string"} if depth == 0 else {"type": "array", "items": nested(depth - 1)}


def wide(num_properties: int) -> dict[str, Any]:
    names = (f"p{i}" for i in range(num_properties))
    return {"type": "object", "properties": {name: {"type": "null"} for name in names}}


@pytest.mark.parametrize(
    "schema",
    [
        nested(200),
        wide(5000),
        {"enum": [f"value {i} {'x' * 50}" for i in range(20_000)]},
        {"type": "string", "pattern": "^(.*a.{1000}|.*b.{1000}){100}(x|y{5000}){5000}$"},
        {"anyOf": [{"type": "integer", "multipleOf": n} for n in (3, 7, 11, 13, 17, 19)]},
    ],
    ids=["deep", "wide", "long", "pattern", "multiples"],
)
def test_bombs_are_refused_or_small(schema: Any) -> None:
    try:
        grammar = schema_grammar(schema)
    except SchemaError:
        return
    # Whatever is let through can be followed within bounds.
    matcher = byte_vocabulary().matcher(grammar)
    matcher.try_consume_tokens(list(b'"aaaaaaaaaaaaaaaaaaaaaaaa'))
    matcher.compute_bitmask()
