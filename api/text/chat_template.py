"""Chat messages to a prompt, by the model's own Jinja template.

Rendered as transformers renders it: sandboxed, `trim_blocks`, `lstrip_blocks`, loop controls,
`raise_exception`, `strftime_now`, an unescaped `tojson`, and the `generation` block tag. A
template is code that came with a model, so it runs against a deadline.
Exercised by `pytest tests/unit/text/test_chat_template.py`.
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn

import jinja2
from jinja2.ext import Extension
from jinja2.ext import loopcontrols as LoopControls  # noqa: N812  a class under an old name
from jinja2.meta import find_undeclared_variables
from jinja2.sandbox import ImmutableSandboxedEnvironment

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from types import FrameType

    from jinja2.nodes import Node
    from jinja2.parser import Parser

RENDER_LIMIT_S = 0.25
"""Processor time: a busy machine must not make a good template fail."""


class ChatTemplateError(ValueError):
    """The template cannot be compiled, or cannot render these messages."""


class _GenerationTag(Extension):
    """`{% generation %}...{% endgeneration %}` marks what an assistant said: for training only."""

    tags = {"generation"}  # noqa: RUF012  jinja2 declares it as an instance variable

    def parse(self, parser: Parser) -> list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(value: Any, indent: int | None = None, **options: Any) -> str:
    # jinja2's own filter escapes HTML characters, which a model should see as they are.
    return json.dumps(value, ensure_ascii=False, indent=indent, **options)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().astimezone().strftime(pattern)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, LoopControls]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


@contextmanager
def _deadline(limit_s: float) -> Iterator[None]:
    """Raise ChatTemplateError in this thread when Python code in the block computes for too long.

    A trace function sees every line of the compiled template, so a loop without any output or call
    is caught too, and nothing of it outlives the block.
    """
    end_s = time.thread_time() + limit_s

    def trace(_frame: FrameType, _event: str, _argument: Any) -> Any:
        if time.thread_time() > end_s:
            raise ChatTemplateError(f"the chat template ran for more than {limit_s:g} s")
        return trace

    previous = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(previous)


class ChatTemplate:
    """A compiled template. `special_tokens` are its variables `bos_token`, `eos_token` ...

    `knows_tools` says that it describes them to its model. Raises ChatTemplateError when the source
    does not compile.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        self.source = source
        self._special_tokens = dict(special_tokens)
        environment = _environment()
        try:
            tree = environment.parse(source)
            self._template = environment.from_string(tree)
            self.knows_tools = "tools" in find_undeclared_variables(tree)
        except jinja2.TemplateError as error:
            raise ChatTemplateError(f"the chat template does not compile: {error}") from error

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        variables: Mapping[str, Any] | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        limit_s: float = RENDER_LIMIT_S,
    ) -> str:
        """The prompt for these messages; a last message of the assistant's is to be continued.

        `variables` are the template's own, such as `enable_thinking`; `tools` are as OpenAI's API
        describes functions. Raises ChatTemplateError when
        the template refuses the messages or takes longer than `limit_s`.
        """
        last = messages[-1]
        is_open = last["role"] == "assistant" and not last.get("tool_calls")
        is_continued = is_open and last["content"].strip()
        if is_open and not is_continued:
            messages = messages[:-1]  # nothing of the answer is there yet
        with _deadline(limit_s):
            ours = {"tools": tools or None, "add_generation_prompt": not is_continued}
            prompt = self._run(messages, dict(variables or {}) | ours)
        return _cut_after(prompt, last["content"]) if is_continued else prompt

    def _run(
        self,
        messages: Sequence[Mapping[str, Any]],
        variables: Mapping[str, Any],
    ) -> str:
        ours = {"messages": messages, "documents": None}
        try:
            return self._template.render(dict(variables) | self._special_tokens | ours)
        except ChatTemplateError:
            raise
        except Exception as error:
            # Any exception: templates index, add and call whatever the messages hold.
            raise ChatTemplateError(f"the chat template refuses these messages: {error}") from error


def _cut_after(prompt: str, continued: str) -> str:
    """The prompt up to the end of the last message's text, without what closes the turn."""
    text = continued.strip()
    position = _last_position(prompt, text)
    if position is None:
        raise ChatTemplateError("the chat template does not show the message to be continued")
    end = position + len(text)
    # A template may strip what it shows; trailing space that it kept belongs to the text.
    tail = continued[len(continued.rstrip()) :]
    return prompt[: end + len(tail)] if prompt.startswith(tail, end) else prompt[:end]


def _last_position(text: str, wanted: str) -> int | None:
    """Where `wanted` begins for the last time.

    Not by `rfind`: where it is not found that takes quadratic time, and holds up all threads;
    `find` is linear (two-way search, since Python 3.10).
    """
    found = text[::-1].find(wanted[::-1])
    return None if found < 0 else len(text) - found - len(wanted)
