"""Texts as models write them when they think, talk and call functions, well formed or not.

Generated from a seed, so that every parser meets the same two hundred.
"""

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

_WORDS = ("Sure", "in Oslo:", "ça", "1 < 2", "{", '"', "\n", "<b>")
_NAMES = ("f", "db.find")
_VALUES: tuple[dict[str, Any], ...] = (
    {"city": "Oslo"},
    {},
    {"t": 'a "q" \\ }\n]', "d": [1, [{"x": None}]]},
    {"é": "\U0001f600"},
    {"c": "</tool_call>[ARGS]"},
)
NUM_TRANSCRIPTS = 200


def _words(rng: random.Random) -> str:
    return " ".join(rng.choices(_WORDS, k=rng.randint(0, 2)))


def _object(rng: random.Random, key: str) -> str:
    members = [("name", rng.choice(_NAMES)), (key, rng.choice(_VALUES))]
    if rng.random() < 0.2:
        members.append(("id", "x9"))
    if rng.random() < 0.3:
        members.reverse()
    if rng.random() < 0.1:
        members = members[:1]
    return json.dumps(dict(members), indent=rng.choice((None, 2)), ensure_ascii=rng.random() < 0.5)


def _hermes(rng: random.Random) -> str:
    space = rng.choice(("", "\n"))
    return f"<tool_call>{space}{_object(rng, 'arguments')}{space}</tool_call>"


def _llama3(rng: random.Random) -> str:
    return _object(rng, "parameters") + rng.choice(("", "; ", "\n"))


def _mistral(rng: random.Random) -> str:
    if rng.random() < 0.5:
        calls = [_object(rng, "arguments") for _ in range(rng.randint(1, 2))]
        return f"[TOOL_CALLS] [{', '.join(calls)}]"
    arguments = json.dumps(rng.choice(_VALUES[:2]))
    return f"[TOOL_CALLS]{rng.choice(_NAMES)}{rng.choice(('[ARGS]', ''))}{arguments}"


def _required(rng: random.Random) -> str:
    return f"[{', '.join(_object(rng, 'parameters') for _ in range(rng.randint(1, 2)))}]"


_CALLS: dict[str, Callable[[random.Random], str]] = {
    "hermes": _hermes,
    "llama3_json": _llama3,
    "mistral": _mistral,
    "required": _required,
}


def _transcript(rng: random.Random, kind: str) -> str:
    thought = rng.choice(("", "", f"<think>{_words(rng)}</think>", f" <think>\n{_words(rng)}"))
    parts = [_CALLS[kind](rng) for _ in range(rng.randint(0, 2))]
    pieces = [thought, "" if rng.random() < 0.5 and parts else _words(rng)]
    for part in parts:
        pieces += [part, _words(rng) if rng.random() < 0.3 else ""]
    text = "".join(pieces)
    # One in four ends anywhere, as at the token limit.
    return text[: rng.randint(0, len(text))] if rng.random() < 0.25 else text


def transcripts() -> Sequence[tuple[str, str]]:
    """The kind of calls and the text of each."""
    rng = random.Random(20261129)
    kinds = tuple(_CALLS)
    return [(kind, _transcript(rng, kind)) for kind in kinds * (NUM_TRANSCRIPTS // len(kinds))]
