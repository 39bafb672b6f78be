"""Was the answer right? Graders of generated text, one per shape of task.

Exercised by `pytest tests/unit/evals/test_graders.py`.
"""

from __future__ import annotations

import re
from fractions import Fraction

_NUMBER = re.compile(r"-?\$?\d[\d,]*(?:\.\d+)?(?:/\d+)?")
_MARKED = re.compile(r"####\s*(.+)")


def final_number(text: str) -> Fraction | None:
    """The number after "####", else the last number of the text. Thousands commas are dropped."""
    marked = _MARKED.search(text)
    found = _NUMBER.findall(marked.group(1) if marked else text)
    if not found:
        return None
    try:
        return Fraction(found[-1].replace(",", "").replace("$", ""))
    except (ValueError, ZeroDivisionError):
        return None


def grade_number(answer: str, reference: str) -> bool:
    """Whether an answer ends in the reference's number (GSM8K-shaped)."""
    expected = final_number(reference)
    return expected is not None and final_number(answer) == expected
