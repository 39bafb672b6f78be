"""Thought and answer, told apart."""

import pytest
from hasten.api.text.reasoning import ReasoningParser, opens_reasoning
from hasten.api.text.tool_parsers.events import Content, Event, Reasoning, joined


@pytest.mark.parametrize(
    ("text", "begun", "events"),
    [
        ("<think>\nhm\n</think>\n\nYes. ", False, [Reasoning("hm"), Content("Yes. ")]),
        (" \n<think>hm </thin", False, [Reasoning("hm </thin")]),
        ("hm</think>Yes", True, [Reasoning("hm"), Content("Yes")]),
        ("hm", True, [Reasoning("hm")]),
        (" Yes <think>", False, [Content(" Yes <think>")]),
        ("  <thi", False, [Content("  <thi")]),
        ("<think></think>", False, []),
        ("<think>a</think>b</think><think>", False, [Reasoning("a"), Content("b</think><think>")]),
        ("", False, []),
    ],
)
def test_what_is_thought_and_what_is_said(text: str, begun: bool, events: list[Event]) -> None:
    for pieces in ([text], list(text)):
        parser = ReasoningParser(begun=begun)
        found = [event for piece in pieces for event in parser.push(piece)]
        assert joined(found + parser.finish()) == events


def test_a_prompt_may_begin_the_thought() -> None:
    assert opens_reasoning("<|assistant|>\n<think>\n")
    assert not opens_reasoning("<think>\n\n</think>\n\n")
