"""What a client may ask an output to follow, and the grammar of each.

`response_format` is OpenAI's, `structured_outputs` vLLM's. Errors are InvalidParameterErrors that
name the field. Exercised by `pytest tests/unit/structured/test_formats.py`.
"""

from __future__ import annotations

import json
from typing import Any, Literal

import msgspec
from hasten.api.structured.check import check_grammar
from hasten.api.structured.compiler import GrammarError
from hasten.api.structured.json_schema import SchemaError, schema_grammar
from hasten.core.params import InvalidParameterError

MAX_CHOICES = 1024
ANY_OBJECT = {"type": "object"}


class JsonSchemaFormat(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A named schema. Outputs follow it whether `strict` or not."""

    name: str
    schema: dict[str, Any] | bool | None = None
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`response_format`: text, any JSON object, or JSON of a schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None

    def grammar(self) -> str:
        """Empty for text. Raises InvalidParameterError."""
        if self.type != "json_schema" and self.json_schema is not None:
            reason = f"is for the type 'json_schema', not for {self.type!r}"
            raise InvalidParameterError("response_format.json_schema", reason)
        if self.type == "text":
            return ""
        if self.type == "json_object":
            return schema_grammar(ANY_OBJECT)
        if self.json_schema is None:
            raise InvalidParameterError("response_format.json_schema", "is required")
        schema = ANY_OBJECT if self.json_schema.schema is None else self.json_schema.schema
        return _of_schema(schema, "response_format.json_schema.schema")


class StructuredOutputs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`structured_outputs`: one of a schema (or its text), a regular expression, texts, a grammar.

    A grammar is Lark as llguidance reads it, or GBNF. `disable_any_whitespace` is for JSON.
    """

    json: str | dict[str, Any] | bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool = False

    def compiled(self) -> str:
        """The grammar. Raises InvalidParameterError."""
        kinds = ("json", "regex", "choice", "grammar", "json_object")
        given = [kind for kind in kinds if getattr(self, kind) not in (None, False)]
        if len(given) != 1:
            found = ", ".join(given) or "none"
            reason = f"needs exactly one of {', '.join(kinds)}, got {found}"
            raise InvalidParameterError("structured_outputs", reason)
        if self.disable_any_whitespace and given[0] not in ("json", "json_object"):
            name = "structured_outputs.disable_any_whitespace"
            raise InvalidParameterError(name, "is for JSON only")
        return self._compiled(given[0])

    def _compiled(self, kind: str) -> str:
        where = f"structured_outputs.{kind}"
        if kind == "regex":
            return _of_regex(self.regex or "", where)
        if kind == "choice":
            return _of_choice(self.choice or [], where)
        if kind == "grammar":
            return _of_grammar(self.grammar or "", where)
        schema = ANY_OBJECT if kind == "json_object" else self.json
        if isinstance(schema, str):
            schema = _parsed(schema, where)
        return _of_schema(schema, where, compact=self.disable_any_whitespace)


def _of_schema(schema: Any, where: str, *, compact: bool = False) -> str:
    try:
        return schema_grammar(schema, compact=compact)
    except SchemaError as error:
        raise InvalidParameterError(where, str(error)) from error


def _parsed(text: str, where: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise InvalidParameterError(where, f"is no JSON: {error}") from error


def _of_choice(choice: list[str], where: str) -> str:
    if len(choice) > MAX_CHOICES:
        reason = f"holds {len(choice)} texts, at most {MAX_CHOICES}"
        raise InvalidParameterError(where, reason)
    if not choice or not all(choice):
        raise InvalidParameterError(where, "holds no text, or an empty one")
    return _checked(
        "start: " + " | ".join(json.dumps(text, ensure_ascii=False) for text in choice), where
    )


def _of_regex(regex: str, where: str) -> str:
    from llguidance import LLMatcher

    return _checked(LLMatcher.grammar_from_regex(regex), where)


def _of_grammar(grammar: str, where: str) -> str:
    from llguidance.gbnf_to_lark import gbnf_to_lark

    if "%json" in grammar or "%llguidance" in grammar:
        reason = "holds %json or %llguidance, which are not supported: schemas have their own field"
        raise InvalidParameterError(where, reason)
    try:
        lark = gbnf_to_lark(grammar) if "::=" in grammar else grammar
    except Exception as error:
        # Whatever an unfinished rule makes the translator stumble over.
        raise InvalidParameterError(where, f"is no GBNF: {error}") from error
    # Grammars in llguidance's own form would bring options and schemas along.
    if lark.lstrip().startswith("{"):
        raise InvalidParameterError(where, "is neither Lark nor GBNF")
    return _checked(lark, where)


def _checked(grammar: str, where: str) -> str:
    try:
        check_grammar(grammar)
    except GrammarError as error:
        raise InvalidParameterError(where, str(error)) from error
    return grammar
