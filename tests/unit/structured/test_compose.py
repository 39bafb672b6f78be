"""Grammars behind thoughts, and schemas of calls."""

import pytest
from hasten.api.structured.check import check_grammar
from hasten.api.structured.compose import (
    behind_thought,
    call_schema,
    calls_between_tags,
    calls_schema,
)
from hasten.api.structured.json_schema import schema_grammar

from tests.unit.structured.test_json_schema import takes

GRAMMARS = {
    "schema": (schema_grammar({"type": "integer"}), "12"),
    "lark": ('start: "yes" | "no"', "no"),
}


@pytest.mark.parametrize("kind", list(GRAMMARS))
def test_a_thought_may_come_first(kind: str) -> None:
    inner, answer = GRAMMARS[kind]
    grammar = behind_thought(inner, begun=False)
    check_grammar(grammar)
    assert takes(grammar, answer)
    assert takes(grammar, f"<think>hm </thin\n</think>\n\n{answer}")
    assert not takes(grammar, f"hm</think>{answer}")
    assert not takes(grammar, "<think>hm</think>other")


@pytest.mark.parametrize("kind", list(GRAMMARS))
def test_a_thought_that_the_prompt_began_has_to_end(kind: str) -> None:
    inner, answer = GRAMMARS[kind]
    grammar = behind_thought(inner, begun=True)
    assert takes(grammar, f"hm\n</think>\n{answer}")
    assert not takes(grammar, answer)


def test_calls_of_functions_whose_schemas_refer_to_themselves() -> None:
    tree = {
        "type": "object",
        "properties": {"$ref": {"type": "null"}, "sub": {"type": "array", "items": {"$ref": "#"}}},
        "required": ["sub"],
        "additionalProperties": False,
    }
    unit = {"$defs": {"u": {"enum": ["#/a"]}}, "type": "object",
            "properties": {"u": {"$ref": "#/$defs/u"}}, "additionalProperties": False}  # fmt: skip
    grammar = schema_grammar(calls_schema([("tree", tree), ("unit", unit)], parallel=True))
    call = '{"name": "tree", "parameters": {"sub": [{"$ref": null, "sub": []}]}}'
    assert takes(grammar, f"[{call}]")
    assert takes(grammar, f'[{call}, {{"name": "unit", "parameters": {{"u": "#/a"}}}}]')
    assert not takes(grammar, "[]")
    assert not takes(grammar, '[{"name": "unit", "parameters": {"sub": []}}]')


def test_one_call_where_they_may_not_be_parallel() -> None:
    grammar = schema_grammar(calls_schema([("f", {"type": "object"})], parallel=False))
    call = '{"name": "f", "parameters": {}}'
    assert takes(grammar, f"[{call}]")
    assert not takes(grammar, f"[{call},{call}]")


ARGUMENTS = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}
RIGHT = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'


@pytest.mark.parametrize(
    ("text", "is_taken", "parallel"),
    [
        ("no call, 1 < 2 <tool", True, True),
        (f"Wait. {RIGHT}", True, True),
        (f"{RIGHT}\n{RIGHT} done", True, True),
        (f"{RIGHT}\n{RIGHT}", False, False),
        (RIGHT, True, False),
        (RIGHT.replace("1", '"x"'), False, True),
        (RIGHT.replace("f", "g"), False, True),
        ("<tool_call>what", False, True),
    ],
)
def test_text_with_calls_that_fit(text: str, is_taken: bool, parallel: bool) -> None:
    call = call_schema([("f", ARGUMENTS)], "arguments")
    grammar = calls_between_tags(call, parallel=parallel)
    assert takes(grammar, text) == is_taken
    assert takes(behind_thought(grammar, begun=False), f"<think>so</think>\n{text}") == is_taken
