"""Function calls in what a model writes: one incremental parser for each way of writing them.

Exercised by `pytest tests/unit/text/test_tool_parsers.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hasten.api.text.tool_parsers.hermes import HermesParser
from hasten.api.text.tool_parsers.llama3 import Llama3Parser
from hasten.api.text.tool_parsers.mistral import MistralParser

if TYPE_CHECKING:
    from collections.abc import Callable

    from hasten.api.text.tool_parsers.events import TextParser

__all__ = ["TOOL_PARSERS", "HermesParser", "Llama3Parser", "MistralParser", "parser_for_template"]

TOOL_PARSERS: dict[str, Callable[[], TextParser]] = {
    "hermes": HermesParser,
    "llama3_json": Llama3Parser,
    "mistral": MistralParser,
}
"""By the name that `--tool-call-parser` takes."""

_SIGNS = {"[TOOL_CALLS]": "mistral", "<tool_call>": "hermes", "<|python_tag|>": "llama3_json"}


def parser_for_template(template: str) -> str:
    """The parser of the calls that a chat template shows its model how to write.

    Hermes' where it shows none: that is how we describe tools to such a model ourselves.
    """
    return next((name for sign, name in _SIGNS.items() if sign in template), "hermes")
