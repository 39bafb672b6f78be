"""Grammars made of grammars: an answer behind a thought, calls of functions.

Exercised by `pytest tests/unit/structured/test_compose.py`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MAX_CALLS = 16
"""The most calls that one answer is forced into: a list without an end would take what it can."""

_THOUGHT = 'thought[suffix="</think>"]: /(.|\\n)*/\n'


def behind_thought(grammar: str, *, begun: bool) -> str:
    """`grammar` behind a thought; where the prompt has not `begun` it, there may be none."""
    start = "thought" if begun else '("<think>" thought)?'
    whole = {"name": "all", "lark_grammar": f"start: {start} /\\s{{0,4}}/ @answer\n{_THOUGHT}"}
    return json.dumps({"grammars": [whole, _part(grammar) | {"name": "answer"}]})


def _part(grammar: str) -> dict[str, Any]:
    """One grammar as llguidance lists several."""
    if not grammar.startswith("{"):
        return {"lark_grammar": grammar}
    part: dict[str, Any] = json.loads(grammar)["grammars"][0]
    return part


def calls_schema(functions: Sequence[tuple[str, Any]], *, parallel: bool) -> dict[str, Any]:
    """The schema of a list of calls of `functions`, given as names and schemas of arguments."""
    definitions = {f"f{i}": _moved(schema, f"f{i}") for i, (_, schema) in enumerate(functions)}
    calls = [
        {
            "type": "object",
            "properties": {"name": {"const": name}, "parameters": {"$ref": f"#/$defs/f{i}"}},
            "required": ["name", "parameters"],
            "additionalProperties": False,
        }
        for i, (name, _) in enumerate(functions)
    ]
    return {
        "$defs": definitions,
        "type": "array",
        "items": {"anyOf": calls},
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
