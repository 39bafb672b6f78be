"""A model's answer taken apart: thought, text, calls; and what decides how.

    text -> `reasoning` (thought | the rest) -> `tool_parsers` (text | calls)

An `AnswerStyle` belongs to a model, an `AnswerPlan` to a request, an `AnswerParser` to a sample.
Exercised by `pytest tests/unit/text/test_answer_plan.py tests/unit/text/test_tool_parsers.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hasten.api.text.reasoning import OPEN, ReasoningParser, opens_reasoning
from hasten.api.text.tool_parsers import parser_for_template
from hasten.api.text.tool_parsers.events import CallArguments, CallBegin, Content, joined

if TYPE_CHECKING:
    from collections.abc import Callable

    from hasten.api.text.tool_parsers.events import Event, TextParser
    from hasten.core.options import ServerOptions


class AnswerParser:
    """One parser behind another; see `tool_parsers.events.TextParser`.

    `tools` gets what `reasoning` says is content. Either may be None: then nothing is looked for.
    Calls beyond `max_calls` are left out.
    """

    def __init__(
        self,
        reasoning: TextParser | None,
        tools: TextParser | None,
        max_calls: int | None = None,
    ) -> None:
        self._reasoning = reasoning
        self._tools = tools
        self._max_calls = max_calls
        self.num_calls = 0

    def push(self, text: str) -> list[Event]:
        """What this text lets show, without empty texts, joined."""
        said: list[Event] = [Content(text)]
        events = said if self._reasoning is None else self._reasoning.push(text)
        return self._shown(self._behind(events))

    def finish(self) -> list[Event]:
        events = [] if self._reasoning is None else self._behind(self._reasoning.finish())
        return self._shown(events + ([] if self._tools is None else self._tools.finish()))

    def _behind(self, events: list[Event]) -> list[Event]:
        tools = self._tools
        if tools is None:
            return events
        found: list[Event] = []
        for event in joined(events):
            found += tools.push(event.text) if isinstance(event, Content) else [event]
        return found

    def _shown(self, events: list[Event]) -> list[Event]:
        shown = []
        for event in joined(events):
            self.num_calls += isinstance(event, CallBegin)
            is_call = isinstance(event, CallBegin | CallArguments)
            if not is_call or self._max_calls is None or self.num_calls <= self._max_calls:
                shown.append(event)
        return shown


@dataclass(frozen=True, slots=True)
class AnswerPlan:
    """How to read the answers to one request.

    `is_begun`: they begin in the middle of a thought. `markers` are special tokens to be shown.
    """

    make_tools: Callable[[], TextParser] | None = None
    reasons: bool = False
    is_begun: bool = False
    is_named: bool = False
    max_calls: int | None = None

    @property
    def markers(self) -> tuple[str, ...]:
        return () if self.make_tools is None else self.make_tools().markers

    def parser(self) -> AnswerParser | None:
        """A parser for one answer; None where the text is all that there is to it."""
        if self.make_tools is None and not self.reasons:
            return None
        reasoning = ReasoningParser(begun=self.is_begun) if self.reasons else None
        tools = None if self.make_tools is None else self.make_tools()
        return AnswerParser(reasoning, tools, self.max_calls)

    def finish_reason(self, reason: str | None, num_calls: int) -> str | None:
        """OpenAI's table: calls end with "tool_calls", unless one was asked for by name."""
        return "tool_calls" if reason == "stop" and num_calls and not self.is_named else reason


PLAIN = AnswerPlan()


@dataclass(frozen=True, slots=True)
class AnswerStyle:
    """How a model writes calls (None: it may not decide to) and whether it thinks between tags."""

    tool_parser: str | None = "hermes"
    reasons: bool = False

    @classmethod
    def resolve(cls, options: ServerOptions, template: str) -> AnswerStyle:
        """What the options ask for, and otherwise what the model's template shows."""
        parser: str | None = options.tool_call_parser
        if parser == "auto":
            parser = parser_for_template(template)
        reasons = options.reasoning_parser not in ("auto", "none")
        if options.reasoning_parser == "auto":
            reasons = OPEN in template
        return cls(parser if options.enable_auto_tool_choice else None, reasons)

    def plan(
        self,
        make_tools: Callable[[], TextParser] | None,
        prompt_end: str,
        *,
        is_named: bool,
        parallel: bool,
    ) -> AnswerPlan:
        """For a request whose prompt ends like this."""
        return AnswerPlan(
            make_tools=make_tools,
            reasons=self.reasons,
            is_begun=self.reasons and opens_reasoning(prompt_end),
            is_named=is_named,
            max_calls=None if parallel else 1,
        )
