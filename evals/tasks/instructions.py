"""Instructions that a program can check, as IFEval's rows name them.

Written from the descriptions in Zhou et al., Instruction-Following Evaluation for Large Language
Models (2023). One kind needs a language detector and is not implemented (`UNCHECKABLE`): rows that
hold it are left out, and counted. Exercised by `pytest tests/unit/evals/test_graders.py`.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

Arguments = dict[str, Any]

UNCHECKABLE = frozenset({"language:response_language"})


class UnknownInstructionError(ValueError):
    """A row asks for something that nothing here can check."""


def grade_instructions(
    answer: str, instruction_ids: Sequence[str], arguments: Sequence[Mapping[str, object]]
) -> bool:
    """Whether an answer follows all of its instructions. Raises UnknownInstructionError."""
    if not answer.strip():
        return False
    pairs = zip(instruction_ids, arguments, strict=True)
    return all(_check(answer, instruction_id, dict(given)) for instruction_id, given in pairs)


def _check(answer: str, instruction_id: str, given: Arguments) -> bool:
    check = _CHECKS.get(instruction_id)
    if check is None:
        raise UnknownInstructionError(f"unknown instruction {instruction_id!r}")
    return check(answer, {key: value for key, value in given.items() if value is not None})


def _holds(count: int, relation: str, number: int) -> bool:
    return count < number if relation == "less than" else count >= number


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text)


def _whole_word(word: str, text: str) -> list[str]:
    return re.findall(rf"(?<!\w){re.escape(word)}(?!\w)", text, re.IGNORECASE)


def _sentences(text: str) -> list[str]:
    return [part for part in re.split(r"(?<=[.!?])[\"')\]]*\s+", text.strip()) if part.strip()]


def _paragraphs(text: str, separator: str) -> list[str]:
    return [part for part in re.split(separator, text) if part.strip()]


def _bullets(text: str) -> int:
    return len(re.findall(r"^\s*(?:\*[^*]|-)", text, re.MULTILINE))


def _highlights(text: str) -> int:
    return len(re.findall(r"\*[^\n*]*[^\s*][^\n*]*\*", text))


def _is_json(text: str) -> bool:
    bare = re.sub(r"^```(?:json)?|```$", "", text.strip(), flags=re.IGNORECASE).strip()
    try:
        json.loads(bare)
    except ValueError:
        return False
    return True


def _two_responses(text: str) -> bool:
    parts = [part.strip() for part in text.split("******")]
    inner = [part for part in parts if part]
    return len(inner) == 2 and inner[0] != inner[1]


def _starts_paragraph(text: str, given: Arguments) -> bool:
    paragraphs = _paragraphs(text, r"\n\n")
    nth = given["nth_paragraph"]
    if len(paragraphs) != given["num_paragraphs"] or not 1 <= nth <= len(paragraphs):
        return False
    first = _words(paragraphs[nth - 1])[:1]
    return [word.lower() for word in first] == [given["first_word"].lower()]


def _capital_words(text: str) -> int:
    return sum(word.isupper() for word in re.findall(r"[^\W\d_][\w'-]*", text))


def _sections(text: str, splitter: str) -> int:
    return len(re.findall(rf"\s?{re.escape(splitter)}\s?\d+", text))


def _last_line_is(text: str, phrase: str) -> bool:
    return text.strip().strip('"').lower().endswith(phrase.strip().lower())


_CONSTRAINED = ("My answer is yes.", "My answer is no.", "My answer is maybe.")

_CHECKS: dict[str, Callable[[str, Arguments], bool]] = {
    "punctuation:no_comma": lambda text, _: "," not in text,
    "length_constraints:number_words": lambda text, a: _holds(
        len(_words(text)), a["relation"], a["num_words"]
    ),
    "length_constraints:number_sentences": lambda text, a: _holds(
        len(_sentences(text)), a["relation"], a["num_sentences"]
    ),
    "length_constraints:number_paragraphs": lambda text, a: (
        len(_paragraphs(text, r"\s?\*\*\*\s?")) == a["num_paragraphs"]
    ),
    "length_constraints:nth_paragraph_first_word": _starts_paragraph,
    "keywords:forbidden_words": lambda text, a: (
        not any(_whole_word(word, text) for word in a["forbidden_words"])
    ),
    "keywords:existence": lambda text, a: all(
        word.lower() in text.lower() for word in a["keywords"]
    ),
    "keywords:frequency": lambda text, a: _holds(
        len(_whole_word(a["keyword"], text)), a["relation"], a["frequency"]
    ),
    "keywords:letter_frequency": lambda text, a: _holds(
        text.lower().count(a["letter"].lower()), a["let_relation"], a["let_frequency"]
    ),
    "detectable_format:number_highlighted_sections": lambda text, a: (
        _highlights(text) >= a["num_highlights"]
    ),
    "detectable_format:title": lambda text, _: bool(re.search(r"<<[^\n]*\S[^\n]*>>", text)),
    "detectable_format:number_bullet_lists": lambda text, a: _bullets(text) == a["num_bullets"],
    "detectable_format:json_format": lambda text, _: _is_json(text),
    "detectable_format:multiple_sections": lambda text, a: (
        _sections(text, a["section_spliter"]) >= a["num_sections"]
    ),
    "detectable_format:constrained_response": lambda text, _: any(
        phrase in text for phrase in _CONSTRAINED
    ),
    "detectable_content:number_placeholders": lambda text, a: (
        len(re.findall(r"\[[^\]\n]+\]", text)) >= a["num_placeholders"]
    ),
    "detectable_content:postscript": lambda text, a: (
        a["postscript_marker"].lower().rstrip(".") in text.lower()
    ),
    "startend:quotation": lambda text, _: (
        len(text.strip()) > 1 and text.strip()[0] == text.strip()[-1] == '"'
    ),
    "startend:end_checker": lambda text, a: _last_line_is(text, a["end_phrase"]),
    "change_case:english_lowercase": lambda text, _: text == text.lower(),
    "change_case:english_capital": lambda text, _: text == text.upper(),
    "change_case:capital_word_frequency": lambda text, a: _holds(
        _capital_words(text), a["capital_relation"], a["capital_frequency"]
    ),
    "combination:repeat_prompt": lambda text, a: (
        text.strip().lower().startswith(a["prompt_to_repeat"].strip().lower())
    ),
    "combination:two_responses": lambda text, _: _two_responses(text),
}
