"""JSON schemas to grammars, strictly: what cannot be held is refused with a pointer to it.

An output that follows the grammar is valid for the schema, its members are in the order in which
the schema lists them, and white space between tokens is at most a line break and an indentation.
Source: JSON Schema 2020-12 (draft 7 where they agree).
Exercised by `pytest tests/unit/structured/test_json_schema.py`.
"""

from __future__ import annotations

import difflib
import json
import math
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from hasten.api.structured.check import check_grammar
from hasten.api.structured.compiler import GrammarError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from llguidance._lib import JsonCompileOptions

WHITESPACE = r"\n[ ]{0,24}|[ ]"
MAX_MULTIPLES = 10_000
"""Digits of all different `multipleOf`s, multiplied: automata have a state for each remainder."""
MAX_OPTIONAL = 300
"""Properties of one object that may be missing: a mask there takes time by their square."""
MAX_DEPTH = 64

_SCHEMAS_BY_NAME = ("properties", "patternProperties", "$defs", "definitions")
_SCHEMA_LISTS = ("prefixItems", "anyOf", "allOf", "oneOf")
_SCHEMAS = ("additionalProperties", "items", "additionalItems")
_HELD = frozenset(
    (
        *_SCHEMAS_BY_NAME,
        *_SCHEMA_LISTS,
        *_SCHEMAS,
        *("type", "enum", "const", "$ref", "required", "minProperties", "maxProperties"),
        *("minItems", "maxItems", "minLength", "maxLength", "pattern", "format"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    )
)
_ANNOTATIONS = frozenset(
    (
        *("$schema", "$id", "$anchor", "$comment", "title", "description", "default", "examples"),
        *("example", "deprecated", "readOnly", "writeOnly", "contentEncoding"),
        *("contentMediaType", "discriminator", "externalDocs", "xml"),
    )
)
_NOT_HELD = frozenset(
    (
        *("not", "if", "then", "else", "uniqueItems", "contains", "minContains", "maxContains"),
        *("dependentRequired", "dependentSchemas", "dependencies", "propertyNames"),
        *("unevaluatedItems", "unevaluatedProperties", "contentSchema", "nullable"),
        *("$dynamicRef", "$dynamicAnchor", "$recursiveRef", "$recursiveAnchor", "$vocabulary"),
    )
)
_NEUTRAL = {"uniqueItems": False, "nullable": False}
"""Keywords that may be there with this value, as generators of schemas write it."""


class SchemaError(ValueError):
    """A schema that cannot be held to; `pointer` (RFC 6901) leads to what is wrong."""

    def __init__(self, pointer: str, message: str) -> None:
        super().__init__(f"{message} (at {pointer or 'the root'})")
        self.pointer = pointer


def schema_grammar(schema: Any, *, compact: bool = False) -> str:
    """The grammar of all JSON texts that are valid for `schema`; `compact`: without white space.

    Raises SchemaError.
    """
    _check(schema)
    if isinstance(schema, bool):
        schema = _of_bool(schema)
    grammar = _compiled(_without_neutral(schema), compact=compact)
    try:
        check_grammar(grammar)
    except GrammarError as error:
        raise SchemaError(_where(schema, schema, str(error), ""), str(error)) from error
    return grammar


def _of_bool(schema: bool) -> dict[str, Any]:
    """The compiler takes them inside a schema only."""
    if not schema:
        raise SchemaError("", "allows no output")
    return {}


def _compiled(schema: Any, *, compact: bool) -> str:
    options: JsonCompileOptions = {"lenient": False, "coerce_one_of": False}
    if compact:
        options["whitespace_flexible"] = False
    else:
        options["whitespace_pattern"] = WHITESPACE
    from llguidance import LLMatcher

    try:
        return LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=options)
    except ValueError as error:
        raise SchemaError("", f"the schema is no JSON: {error}") from error


def _check(schema: Any) -> None:
    """Raises SchemaError for what the grammar's compiler would not notice, or not survive."""
    multiples: set[int] = set()
    for pointer, part in _walk(schema, ""):
        if isinstance(part, bool):
            continue
        if not isinstance(part, dict):
            raise SchemaError(pointer, "a schema is an object, true or false")
        for keyword, value in part.items():
            _check_keyword(f"{pointer}/{_escaped(keyword)}", keyword, value)
        if _num_optional(part) > MAX_OPTIONAL:
            reason = f"an object may have {MAX_OPTIONAL} optional properties"
            raise SchemaError(f"{pointer}/properties", reason)
        if "multipleOf" in part:
            multiples.add(_digits(part["multipleOf"], f"{pointer}/multipleOf"))
        if math.prod(multiples) > MAX_MULTIPLES:
            reason = f"the multipleOf of a schema, multiplied, may have {MAX_MULTIPLES} at most"
            raise SchemaError(f"{pointer}/multipleOf", reason)


def _num_optional(part: dict[str, Any]) -> int:
    """How many properties may be missing; that they are no properties the compiler will say."""
    properties, required = part.get("properties"), part.get("required")
    num_required = len(required) if isinstance(required, list) else 0
    return len(properties) - num_required if isinstance(properties, dict) else 0


def _check_keyword(pointer: str, keyword: str, value: Any) -> None:
    if keyword in _HELD:
        if keyword == "items" and isinstance(value, list):
            raise SchemaError(pointer, "a list of schemas is prefixItems, not items")
        if keyword == "$ref" and not (isinstance(value, str) and value.startswith("#")):
            raise SchemaError(pointer, "only references into the schema itself are followed")
        return
    if keyword in _ANNOTATIONS or (keyword.startswith("x-") and keyword != "x-guidance"):
        return
    if keyword in _NEUTRAL and value == _NEUTRAL[keyword]:
        return
    if keyword in _NOT_HELD:
        raise SchemaError(pointer, f"the keyword {keyword!r} is not supported")
    near = difflib.get_close_matches(keyword, _HELD | _NOT_HELD, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise SchemaError(pointer, f"the keyword {keyword!r} is not known{hint}")


def _digits(value: Any, pointer: str) -> int:
    """The significant digits of a number, as an integer."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise SchemaError(pointer, "multipleOf is a positive number")
    return int("".join(map(str, Decimal(str(value)).normalize().as_tuple().digits)))


def _walk(schema: Any, pointer: str, depth: int = 0) -> Iterator[tuple[str, Any]]:
    """The schema and all schemas in it, with pointers."""
    if depth > MAX_DEPTH:
        raise SchemaError(pointer, f"schemas are nested more than {MAX_DEPTH} deep")
    yield pointer, schema
    for below, part in _parts(schema):
        yield from _walk(part, f"{pointer}{below}", depth + 1)


def _parts(schema: Any) -> Iterator[tuple[str, Any]]:
    """The schemas directly below one, with relative pointers."""
    if not isinstance(schema, dict):
        return
    for keyword in _SCHEMAS:
        if keyword in schema and not isinstance(schema[keyword], list):
            yield f"/{keyword}", schema[keyword]
    for keyword in _SCHEMA_LISTS:
        if isinstance(schema.get(keyword), list):
            for i, part in enumerate(schema[keyword]):
                yield f"/{keyword}/{i}", part
    for keyword in _SCHEMAS_BY_NAME:
        if isinstance(schema.get(keyword), dict):
            for name, part in schema[keyword].items():
                yield f"/{_escaped(keyword)}/{_escaped(name)}", part


def _without_neutral(schema: Any) -> Any:
    """The same without keywords that say nothing, which the compiler does not know."""
    if isinstance(schema, list):
        return [_without_neutral(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {key: value for key, value in schema.items() if key not in _NEUTRAL}
    literal = ("enum", "const", "default", "examples")
    return {k: v if k in literal else _without_neutral(v) for k, v in kept.items()}


def _where(schema: Any, root: Any, message: str, pointer: str) -> str:
    """The deepest schema that is wrong by itself, and in the same way."""
    for below, part in _parts(schema):
        if isinstance(part, dict):
            try:
                check_grammar(_compiled(_with_definitions(part, root), compact=True))
            except GrammarError as error:
                if str(error) == message:
                    return _where(part, root, message, f"{pointer}{below}")
    return pointer


def _with_definitions(part: dict[str, Any], root: dict[str, Any]) -> dict[str, Any]:
    kept = {name: root[name] for name in ("$defs", "definitions") if name in root}
    merged: dict[str, Any] = _without_neutral(kept | part)
    return merged


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
