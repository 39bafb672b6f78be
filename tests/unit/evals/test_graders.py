from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hasten.evals.tasks.graders import final_number, grade_number
from hasten.evals.tasks.instructions import UnknownInstructionError, grade_instructions


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("She has 3 + 4 = 7 apples.\n#### 7", 7),
        ("The answer is $1,234.50.", Fraction("1234.5")),
        ("So 18 dollars. #### 18\nThen 5 more", 18),
        ("minus: -12", -12),
        ("3/4 of it", Fraction(3, 4)),
        ("none at all", None),
        ("1/0", None),
    ],
)
def test_final_number(text: str, number: Fraction | int | None) -> None:
    assert final_number(text) == number


def test_grade_number() -> None:
    assert grade_number("It makes 1,000.", "... #### 1000")
    assert not grade_number("It makes 999.", "... #### 1000")
    assert not grade_number("no idea", "#### 1000")


@pytest.mark.parametrize(
    ("instruction", "given", "good", "bad"),
    [
        ("punctuation:no_comma", {}, "No comma here.", "Well, one."),
        (
            "length_constraints:number_words",
            {"relation": "at least", "num_words": 3},
            "one two three",
            "one two",
        ),
        (
            "length_constraints:number_sentences",
            {"relation": "less than", "num_sentences": 3},
            "One. Two!",
            "One. Two! Three?",
        ),
        (
            "length_constraints:number_paragraphs",
            {"num_paragraphs": 2},
            "first\n***\nsecond",
            "only one",
        ),
        (
            "length_constraints:nth_paragraph_first_word",
            {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "Then"},
            "First this.\n\nthen that.",
            "First this.\n\nAnd that.",
        ),
        ("keywords:forbidden_words", {"forbidden_words": ["rock"]}, "rocket science", "a Rock"),
        ("keywords:existence", {"keywords": ["mom", "dad"]}, "Mom and dad", "mom only"),
        (
            "keywords:frequency",
            {"relation": "at least", "keyword": "war", "frequency": 2},
            "war and War",
            "war and wardrobe",
        ),
        (
            "keywords:letter_frequency",
            {"let_relation": "at least", "letter": "!", "let_frequency": 2},
            "Hey! You!",
            "Hey!",
        ),
        (
            "detectable_format:number_highlighted_sections",
            {"num_highlights": 2},
            "*one* and **two**",
            "*one* and two",
        ),
        ("detectable_format:title", {}, "<<My title>>\ntext", "<< >>\ntext"),
        ("detectable_format:number_bullet_lists", {"num_bullets": 2}, "* a\n- b", "* a\n- b\n- c"),
        ("detectable_format:json_format", {}, '```json\n{"a": 1}\n```', "{a: 1}"),
        (
            "detectable_format:multiple_sections",
            {"section_spliter": "SECTION", "num_sections": 2},
            "SECTION 1\na\nSECTION 2\nb",
            "SECTION 1\na",
        ),
        ("detectable_format:constrained_response", {}, "My answer is no.", "No."),
        (
            "detectable_content:number_placeholders",
            {"num_placeholders": 2},
            "[name], [address]",
            "[name]",
        ),
        ("detectable_content:postscript", {"postscript_marker": "P.S."}, "x\nP.S. y", "x"),
        ("startend:quotation", {}, '"quoted"', '"half'),
        ("startend:end_checker", {"end_phrase": "Any more?"}, "Well. any more?", "Any more? No"),
        ("change_case:english_lowercase", {}, "all small", "Not small"),
        ("change_case:english_capital", {}, "ALL BIG", "NOT big"),
        (
            "change_case:capital_word_frequency",
            {"capital_relation": "less than", "capital_frequency": 2},
            "ONE word",
            "TWO WORDS",
        ),
        (
            "combination:repeat_prompt",
            {"prompt_to_repeat": "Say it"},
            "Say it\nand more",
            "and more",
        ),
        ("combination:two_responses", {}, "one ****** two", "one ****** one"),
    ],
)
def test_instructions(instruction: str, given: dict[str, Any], good: str, bad: str) -> None:
    assert grade_instructions(good, [instruction], [given])
    assert not grade_instructions(bad, [instruction], [given])


def test_all_instructions_must_hold_and_empty_answers_hold_none() -> None:
    both = ["punctuation:no_comma", "change_case:english_lowercase"]
    assert grade_instructions("fine", both, [{}, {}])
    assert not grade_instructions("fine, no", both, [{}, {}])
    assert not grade_instructions("  ", both, [{}, {}])


def test_an_unknown_instruction_is_an_error() -> None:
    with pytest.raises(UnknownInstructionError, match="made:up"):
        grade_instructions("text", ["made:up"], [{}])
