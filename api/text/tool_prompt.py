"""Tools for models whose chat template knows none: a system message describes them, as to Hermes.

    system     ... and how to call the functions
    assistant  text, then <tool_call>{...}</tool_call>
    user       <tool_response>...</tool_response>          what a call gave

Exercised by `pytest tests/unit/text/test_tool_prompt.py`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_INTRODUCTION = """You can call these functions, one JSON object in each line:
<tools>
{tools}
</tools>

To call one, write its name and its arguments as JSON between tags, once for each call:
<tool_call>
{{"name": "the function", "arguments": {{"an argument": "its value"}}}}
</tool_call>"""


def with_tools_described(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """The same conversation in messages that have a role and a text, and nothing else."""
    plain = [_plain(message) for message in messages]
    if not tools:
        return plain
    functions = "\n".join(json.dumps(t["function"], ensure_ascii=False) for t in tools)
    introduction = _INTRODUCTION.format(tools=functions)
    if plain and plain[0]["role"] == "system":
        first = plain[0] | {"content": f"{plain[0]['content']}\n\n{introduction}".strip()}
        return [first, *plain[1:]]
    return [{"role": "system", "content": introduction}, *plain]


def _plain(message: Mapping[str, Any]) -> dict[str, Any]:
    content = message["content"]
    if message["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{content}\n</tool_response>"}
    calls = [_call(call["function"]) for call in message.get("tool_calls", ())]
    kept = {key: value for key, value in message.items() if key in ("role", "name")}
    return kept | {"content": "\n".join([content, *calls] if content else calls)}


def _call(function: Mapping[str, Any]) -> str:
    written = json.dumps(
        {"name": function["name"], "arguments": function["arguments"]}, ensure_ascii=False
    )
    return f"<tool_call>\n{written}\n</tool_call>"
