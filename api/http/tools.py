"""Functions that a model may call, as OpenAI's API describes them, and how a request uses them.

Exercised by `pytest tests/unit/api/test_tools.py`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from hasten.api.http.errors import ApiError, unsupported
from hasten.api.structured.compose import calls_schema
from hasten.api.structured.json_schema import SchemaError, schema_grammar
from hasten.api.text.tool_parsers import TOOL_PARSERS
from hasten.api.text.tool_parsers.forced import NamedParser, RequiredParser

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hasten.api.text.tool_parsers.events import TextParser

MAX_TOOLS = 128  # as OpenAI's API
_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
ANY_ARGUMENTS = {"type": "object"}


class FunctionDefinition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a function is called, does and takes. `strict` needs a forced call."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: Literal["function"]
    function: FunctionDefinition

    def as_template_wants(self) -> dict[str, Any]:
        function: dict[str, Any] = {"name": self.function.name}
        if self.function.description is not None:
            function["description"] = self.function.description
        function["parameters"] = self.function.parameters or ANY_ARGUMENTS
        return {"type": "function", "function": function}


class ChosenFunction(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str


class NamedChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`tool_choice`: this function and no other."""

    type: Literal["function"]
    function: ChosenFunction


ToolChoice = Literal["none", "auto", "required"] | NamedChoice


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The tools of one request, checked. `choice` is none, auto, required, or a function's name.

    Raises ApiError.
    """

    tools: Sequence[Tool]
    choice: str
    is_named: bool
    parallel: bool

    @classmethod
    def of(
        cls, tools: Sequence[Tool] | None, choice: ToolChoice | None, parallel: bool | None
    ) -> ToolUse:
        is_named = isinstance(choice, NamedChoice)
        name = choice.function.name if isinstance(choice, NamedChoice) else choice
        use = cls(
            tools or (), name or ("auto" if tools else "none"), is_named, parallel is not False
        )
        use._check()
        return use

    def _check(self) -> None:
        if len(self.tools) > MAX_TOOLS:
            reason = f"tools holds {len(self.tools)} functions, at most {MAX_TOOLS}"
            raise ApiError(400, reason, param="tools")
        names = [tool.function.name for tool in self.tools]
        for i, name in enumerate(names):
            where = f"tools[{i}].function.name"
            if not _NAME.fullmatch(name):
                reason = f"{where}: 1 to 64 letters, digits, dots, underscores and dashes"
                raise ApiError(400, reason, param=where)
            if name in names[:i]:
                raise ApiError(400, f"{where}: {name!r} is there twice", param=where)
        if self.is_named and self.choice not in names:
            reason = f"tool_choice: no tool is called {self.choice!r}"
            raise ApiError(400, reason, param="tool_choice.function.name")
        if self.choice == "required" and not self.tools:
            raise ApiError(400, "tool_choice required needs tools", param="tool_choice")
        self._check_strict()

    def _check_strict(self) -> None:
        """Only a forced call is held to its schema."""
        if self.is_forced or self.choice == "none":
            return
        for i, tool in enumerate(self.tools):
            if tool.function.strict:
                where = f"tools[{i}].function.strict"
                reason = f"{where}: only with tool_choice 'required' or a function's name"
                raise unsupported(where, reason)

    @property
    def is_forced(self) -> bool:
        return self.is_named or self.choice == "required"

    def for_template(self) -> list[dict[str, Any]]:
        """What the model is told of; nothing where it may call nothing."""
        if self.choice == "none":
            return []
        return [tool.as_template_wants() for tool in self.tools]

    def grammar(self) -> str:
        """What a forced call follows, empty where none is forced. Raises ApiError."""
        if not self.is_forced:
            return ""
        schemas = [(tool.function.name, tool.function.parameters) for tool in self.tools]
        grammars = {name: _grammar(schema, i) for i, (name, schema) in enumerate(schemas)}
        if self.is_named:
            return grammars[self.choice]
        named = [(name, ANY_ARGUMENTS if schema is None else schema) for name, schema in schemas]
        return _checked(calls_schema(named, parallel=self.parallel), "tools")

    def parser(self, style: str) -> Callable[[], TextParser] | None:
        """How to read the answer, with the model's own way of writing calls called `style`."""
        if self.is_named:
            return partial(NamedParser, self.choice)
        if self.choice == "required":
            return RequiredParser
        return TOOL_PARSERS[style] if self.choice == "auto" and self.tools else None


def _grammar(schema: dict[str, Any] | None, tool_idx: int) -> str:
    where = f"tools[{tool_idx}].function.parameters"
    return _checked(ANY_ARGUMENTS if schema is None else schema, where)


def _checked(schema: dict[str, Any], where: str) -> str:
    try:
        return schema_grammar(schema)
    except SchemaError as error:
        raise ApiError(400, f"{where}: {error}", param=where, code="invalid_value") from error
