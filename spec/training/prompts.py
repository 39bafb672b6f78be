"""The prompts that training text is generated from: a built-in set, or the lines of a file.

Exercised by `pytest tests/unit/spec/test_training_prompts.py`.
"""

from __future__ import annotations

import json
import random
import tomllib
from importlib.resources import files
from pathlib import Path


def built_in_prompts(seed: int) -> list[str]:
    """Every prompt of the built-in set once, in an order drawn from `seed`."""
    text = (files(__package__) / "prompts.toml").read_text(encoding="utf-8")
    found = [
        template.format(subject)
        for group in tomllib.loads(text)["group"]
        for template in group["templates"]
        for subject in group["subjects"]
    ]
    random.Random(seed).shuffle(found)  # noqa: S311 (an order, not a secret)
    return found


def read_prompts(path: Path) -> list[str]:
    """One prompt a line: plain text, or JSON objects with a `prompt` or the `turns` of a chat, of
    which the first is taken.

    Raises ValueError naming the line, and OSError.
    """
    prompts = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        if not line.startswith("{"):
            prompts.append(line)
            continue
        try:
            found = json.loads(line)
            prompts.append(str(found["turns"][0] if "turns" in found else found["prompt"]))
        except (ValueError, LookupError, TypeError) as error:
            raise ValueError(f"{path}: line {number} is no object with a prompt") from error
    if not prompts:
        raise ValueError(f"{path}: holds no prompt")
    return prompts
