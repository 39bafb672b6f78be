"""What decides how an answer is read."""

import pytest
from hasten.api.text.answer_plan import AnswerPlan, AnswerStyle
from hasten.api.text.tool_parsers import HermesParser, MistralParser
from hasten.api.text.tool_parsers.events import CallArguments, CallBegin, Content
from hasten.core.options import ServerOptions


def test_nothing_to_look_for_needs_no_parser() -> None:
    assert AnswerPlan().parser() is None
    assert AnswerPlan().markers == ()
    assert AnswerPlan(make_tools=MistralParser).markers == ("[TOOL_CALLS]", "[ARGS]")


def test_calls_beyond_the_limit_are_left_out() -> None:
    parser = AnswerPlan(make_tools=HermesParser, max_calls=1).parser()
    assert parser is not None
    call = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
    assert parser.push(call + call + "x") == [
        CallBegin("f"),
        CallArguments('{"a": 1}'),
        Content("x"),
    ]


@pytest.mark.parametrize(
    ("reason", "num_calls", "is_named", "told"),
    [
        ("stop", 0, False, "stop"),
        ("stop", 2, False, "tool_calls"),
        ("stop", 1, True, "stop"),
        ("length", 1, False, "length"),
        (None, 1, False, None),
    ],
)
def test_finish_reasons(reason: str, num_calls: int, is_named: bool, told: str) -> None:
    assert AnswerPlan(is_named=is_named).finish_reason(reason, num_calls) == told


@pytest.mark.parametrize(
    ("options", "template", "style"),
    [
        (ServerOptions(), "", AnswerStyle("hermes", reasons=False)),
        (ServerOptions(), "<think> [TOOL_CALLS]", AnswerStyle("mistral", reasons=True)),
        (ServerOptions(reasoning_parser="none"), "<think>", AnswerStyle("hermes", reasons=False)),
        (ServerOptions(reasoning_parser="qwen3"), "", AnswerStyle("hermes", reasons=True)),
        (ServerOptions(tool_call_parser="mistral"), "<tool_call>", AnswerStyle("mistral")),
        (ServerOptions(enable_auto_tool_choice=False), "<tool_call>", AnswerStyle(None)),
    ],
)
def test_the_style_of_a_model(options: ServerOptions, template: str, style: AnswerStyle) -> None:
    assert AnswerStyle.resolve(options, template) == style


@pytest.mark.parametrize(
    ("reasons", "prompt_end", "is_begun"),
    [(True, "<assistant><think>\n", True), (True, "<assistant>", False), (False, "<think>", False)],
)
def test_a_plan_knows_where_the_answer_begins(
    reasons: bool, prompt_end: str, is_begun: bool
) -> None:
    style = AnswerStyle(reasons=reasons)
    plan = style.plan(None, prompt_end, is_named=False, parallel=True)
    assert plan.is_begun == is_begun
