"""Grammars made of grammars: an answer behind a thought, calls of functions.

Exercised by `pytest tests/unit/structured/test_compose.py`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from hasten.api.structured.json_schema import schema_grammar

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MAX_CALLS = 16
"""The most calls that one answer is forced into: a list without an end would take what it can."""

_THOUGHT = 'thought[suffix="</think>"]: /(.|\\n)*/\n'
_TALK = r"""talk[suffix="<tool_call>"]: /(.|\n)*/
call: /\s{0,2}/ @call /\s{0,2}/ "</tool_call>"
TAIL: /(.|\n)*/ & ~/(.|\n)*<tool_call>(.|\n)*/
"""


def behind_thought(grammar: str, *, begun: bool) -> str:
    """`grammar` behind a thought; where the prompt has not `begun` it, there may be none."""
    start = "thought" if begun else '("<think>" thought)?'
    whole = f"start: {start} /\\s{{0,4}}/ @answer\n{_THOUGHT}"
    return _with_part(whole, "answer", grammar)


def calls_between_tags(schema: Any, *, parallel: bool) -> str:
    """Text, and between `<tool_call>` tags nothing but JSON of `schema`, which is one call's.

    Raises SchemaError.
    """
    start = "(talk call)*" if parallel else "(talk call)?"
    whole = f"start: {start} TAIL\n{_TALK}"
    return _with_part(whole, "call", schema_grammar(schema))


def _with_part(whole: str, name: str, part: str) -> str:
    """A Lark grammar that refers to another, of any kind, as `@name`."""
    if part.startswith("{"):
        first, *others = json.loads(part)["grammars"]
    else:
        first, others = {"lark_grammar": part}, []
    grammars = [{"name": "whole", "lark_grammar": whole}, first | {"name": name}, *others]
    return json.dumps({"grammars": grammars})


def call_schema(functions: Sequence[tuple[str, Any]], key: str) -> dict[str, Any]:
    """The schema of a call of one of `functions`, given as names and schemas of arguments.

    `key` is the member that holds the arguments.
    """
    calls = [
        {
            "type": "object",
            "properties": {"name": {"const": name}, key: {"$ref": f"#/$defs/f{i}"}},
            "required": ["name", key],
            "additionalProperties": False,
        }
        for i, (name, _) in enumerate(functions)
    ]
    definitions = {f"f{i}": _moved(schema, f"f{i}") for i, (_, schema) in enumerate(functions)}
    return {"$defs": definitions, "anyOf": calls}


def calls_schema(functions: Sequence[tuple[str, Any]], *, parallel: bool) -> dict[str, Any]:
    """The schema of a list of such calls."""
    call = call_schema(functions, "parameters")
    return {
        "$defs": call["$defs"],
        "type": "array",
        "items": {"anyOf": call["anyOf"]},
        "minItems": 1,
        "maxItems": MAX_CALLS if parallel else 1,
    }


def _moved(schema: Any, name: str) -> Any:
    """A schema whose references still lead where they did when it is a definition of another."""
    if isinstance(schema, list):
        return [_moved(item, name) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {key: _moved_value(key, value, name) for key, value in schema.items()}


def _moved_value(key: str, value: Any, name: str) -> Any:
    if key in ("enum", "const", "default", "examples"):
        return value
    if key in ("properties", "patternProperties", "$defs", "definitions"):
        return _moved_members(value, name)
    if key == "$ref" and isinstance(value, str) and value.startswith("#"):
        return f"#/$defs/{name}{value[1:]}"
    return _moved(value, name)


def _moved_members(members: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Members whose names are not keywords, whatever they look like."""
    return {member: _moved(value, name) for member, value in members.items()}
