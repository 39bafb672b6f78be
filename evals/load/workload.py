"""What is asked: prompts and output lengths, from files, traces or thin air.

A `Workload` is a list of conversations; most have one turn. Texts made up here are random words,
so that a server's prefix cache helps only where a trace says that prefixes are shared.

Formats read: jsonl with `messages`, `prompt`, `turns` or `question` per row (optionally
`max_tokens`); the Azure LLM inference trace (csv: TIMESTAMP, ContextTokens, GeneratedTokens); the
Mooncake trace (jsonl: timestamp in ms, input_length, output_length, hash_ids of 512-token blocks);
csv with arrival_s, input_tokens, output_tokens. Exercised by `pytest tests/unit/load`.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from hasten.evals.load.errors import LoadError

MOONCAKE_BLOCK = 512
"""Tokens that one hash id of a Mooncake trace stands for."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One thing a client says, and how long an answer it wants."""

    content: str
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Conversation:
    """Turns said one after the other, each with the earlier answers as its context.

    `arrival_s` is when a trace says the first one comes; None where there is no trace.
    """

    turns: tuple[Turn, ...]
    arrival_s: float | None = None


@dataclass(frozen=True, slots=True)
class Workload:
    """Conversations in order of arrival. `ignore_eos` asks for exactly `max_tokens` tokens."""

    name: str
    conversations: tuple[Conversation, ...]
    ignore_eos: bool

    def __post_init__(self) -> None:
        if not self.conversations:
            raise LoadError(f"workload {self.name!r} is empty")

    @property
    def num_requests(self) -> int:
        return sum(len(conversation.turns) for conversation in self.conversations)


def random_text(num_words: int, seed: tuple[int, ...]) -> str:
    """`num_words` short words, a function of the seed alone; about one token each."""
    rng = np.random.default_rng(seed)
    return " ".join(_WORDS[i] for i in rng.integers(len(_WORDS), size=num_words))


def random_workload(count: int, input_len: int, output_len: int, seed: int) -> Workload:
    """`count` prompts of about `input_len` tokens that share nothing."""
    conversations = tuple(
        Conversation((Turn(random_text(input_len, (seed, i)), output_len),)) for i in range(count)
    )
    return Workload(f"random {input_len}+{output_len}", conversations, ignore_eos=True)


def prompts_from_file(path: Path, count: int, output_len: int, seed: int = 0) -> Workload:
    """The `seed`-th `count` rows of a jsonl file, which begins again at its end."""
    rows = [_conversation(row, where, output_len) for where, row in _json_rows(path)]
    if not rows:
        raise LoadError(f"{path}: no rows")
    picked = tuple(rows[(seed * count + i) % len(rows)] for i in range(count))
    return Workload(path.stem, picked, ignore_eos=False)


def trace_from_file(path: Path, count: int, seed: int, max_input: int, max_output: int) -> Workload:
    """The first `count` requests of a trace that are no longer than the two limits."""
    fitting = []
    for row in trace_lengths(path):
        if row.input_len <= max_input and 1 <= row.output_len <= max_output:
            turn = Turn(row.text(seed), row.output_len)
            fitting.append(Conversation((turn,), row.arrival_s))
        if len(fitting) == count:
            break
    if not fitting:
        raise LoadError(f"{path}: no request of at most {max_input} + {max_output} tokens")
    return Workload(path.stem, tuple(fitting), ignore_eos=True)


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One request of a trace: lengths in tokens, and which 512-token blocks its prompt is of."""

    arrival_s: float
    input_len: int
    output_len: int
    block_ids: tuple[int, ...]

    def text(self, seed: int) -> str:
        """A made-up prompt of about that length; equal blocks give equal text."""
        sizes = [MOONCAKE_BLOCK] * (self.input_len // MOONCAKE_BLOCK)
        sizes.append(self.input_len % MOONCAKE_BLOCK)
        parts = zip(sizes, self.block_ids, strict=False)
        return " ".join(random_text(size, (seed, block)) for size, block in parts if size)


def trace_lengths(path: Path) -> Iterator[TraceRow]:
    """Every request of a trace. Raises LoadError, naming file and line."""
    return _mooncake(path) if path.suffix == ".jsonl" else _lengths_csv(path)


def _json_rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise LoadError(f"{path}: {error}") from None
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise LoadError(f"{where}: not JSON: {error}") from None
        if not isinstance(row, dict):
            raise LoadError(f"{where}: a row must be an object")
        yield where, row


def _conversation(row: dict[str, Any], where: str, output_len: int) -> Conversation:
    max_tokens = row.get("max_tokens", output_len)
    if not isinstance(max_tokens, int) or max_tokens < 1:
        raise LoadError(f"{where}: max_tokens must be a positive integer, got {max_tokens!r}")
    return Conversation(tuple(Turn(text, max_tokens) for text in _texts(row, where)))


def _texts(row: dict[str, Any], where: str) -> list[str]:
    """What the user says in a row, turn by turn."""
    if "messages" in row:
        texts = [m.get("content") for m in row["messages"] if m.get("role") == "user"]
    elif "turns" in row:
        texts = list(row["turns"])
    else:
        texts = [row.get("prompt", row.get("question"))]
    if not texts or not all(isinstance(text, str) and text for text in texts):
        raise LoadError(f"{where}: needs messages, turns, prompt or question, as text")
    return texts


def _mooncake(path: Path) -> Iterator[TraceRow]:
    for where, row in _json_rows(path):
        try:
            yield TraceRow(
                row["timestamp"] / 1000,
                int(row["input_length"]),
                int(row["output_length"]),
                tuple(map(int, row["hash_ids"])),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise LoadError(f"{where}: not a Mooncake trace row: {error!r}") from None


def _lengths_csv(path: Path) -> Iterator[TraceRow]:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError) as error:
        raise LoadError(f"{path}: {error}") from None
    first_block = 0
    for i, row in enumerate(rows):
        try:
            arrival_s, input_len, output_len = _csv_row(row)
        except (KeyError, TypeError, ValueError) as error:
            raise LoadError(f"{path}:{i + 2}: not a trace row: {error!r}") from None
        num_blocks = input_len // MOONCAKE_BLOCK + 1
        blocks = tuple(range(first_block, first_block + num_blocks))
        first_block += num_blocks
        yield TraceRow(arrival_s, input_len, output_len, blocks)


def _csv_row(row: dict[str, str]) -> tuple[float, int, int]:
    if "TIMESTAMP" in row:
        arrival_s = datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp()
        return arrival_s, int(row["ContextTokens"]), int(row["GeneratedTokens"])
    return float(row.get("arrival_s") or 0.0), int(row["input_tokens"]), int(row["output_tokens"])


_COMMON = (
    "the of and to in is was for on that with as it at by from his her they this have not are but "
    "had you all one were we there been their would when who more no out so up into them can only "
    "other time new some could these two may then do first any my now such like our over man me "
    "even most made after also did many before must through back years where much your way well "
    "down should because each just those people how too little state good very make world still "
    "own see men work long get here between both life being under never day same another know "
    "while last might us great old year off come since against go came right used take three"
)
_WORDS = _COMMON.split()
