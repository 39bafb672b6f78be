"""Functions that a model may call, as OpenAI's API describes them, and how a request uses them.

Exercised by `pytest tests/unit/api/test_tools.py`.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from hasten.api.http.errors import ApiError, unsupported
from hasten.api.structured.compose import call_schema, calls_between_tags, calls_schema
from hasten.api.structured.json_schema import SchemaError, schema_grammar
from hasten.api.text.tool_parsers import TOOL_PARSERS
from hasten.api.text.tool_parsers.forced import NamedParser, RequiredParser

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from hasten.api.text.tool_parsers.events import TextParser

MAX_TOOLS = 128  # as OpenAI's API
_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
ANY_ARGUMENTS = {"type": "object"}


class FunctionDefinition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a function is called, does and takes; calls of `strict` ones fit their schema."""

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

    @property
    def is_forced(self) -> bool:
        return self.is_named or self.choice == "required"

    def for_template(self) -> list[dict[str, Any]]:
        """What the model is told of; nothing where it may call nothing."""
        if self.choice == "none":
            return []
        return [tool.as_template_wants() for tool in self.tools]

    def grammar(self, style: str | None) -> str:
        """What the answer follows, empty where calls are only read. Raises ApiError.

        Forced calls are held to their schemas; those that a model decides on, where the way in
        which it writes them is called `style`, to those of `strict` functions.
        """
        if self.is_forced:
            return self._forced_grammar()
        strict = [i for i, tool in enumerate(self.tools) if tool.function.strict]
        if self.choice != "auto" or not strict:
            return ""
        if style != "hermes":
            where = f"tools[{strict[0]}].function.strict"
            reason = f"{where}: with --tool-call-parser {style} only where the call is forced"
            raise unsupported(where, reason)
        functions = self._functions(only_strict=True)
        with _naming("tools"):
            schema = call_schema(functions, "arguments")
            return calls_between_tags(schema, parallel=self.parallel)

    def _forced_grammar(self) -> str:
        functions = self._functions(only_strict=False)
        with _naming("tools"):
            if self.is_named:
                return schema_grammar(dict(functions)[self.choice])
            return schema_grammar(calls_schema(functions, parallel=self.parallel))

    def _functions(self, *, only_strict: bool) -> list[tuple[str, Any]]:
        """Names and schemas that can be held to. Raises ApiError naming one that cannot."""
        functions: list[tuple[str, Any]] = []
        for i, tool in enumerate(self.tools):
            function = tool.function
            is_free = function.parameters is None or (only_strict and not function.strict)
            schema = ANY_ARGUMENTS if is_free else function.parameters
            with _naming(f"tools[{i}].function.parameters"):
                schema_grammar(schema)
            functions.append((function.name, schema))
        return functions

    def parser(self, style: str) -> Callable[[], TextParser] | None:
        """How to read the answer, with the model's own way of writing calls called `style`."""
        if self.is_named:
            return partial(NamedParser, self.choice)
        if self.choice == "required":
            return RequiredParser
        return TOOL_PARSERS[style] if self.choice == "auto" and self.tools else None


@contextmanager
def _naming(where: str) -> Iterator[None]:
    """Raises ApiError where the block finds a schema wrong."""
    try:
        yield
    except SchemaError as error:
        raise ApiError(400, f"{where}: {error}", param=where, code="invalid_value") from error
