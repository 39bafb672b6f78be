"""What a head learns from: tokens, the target's features of each, and what the target would say.

A corpus is a folder of shards, each a safetensors file of some sequences laid end to end:

    tokens       [n] i32             prompts and answers
    lens         [s] i32             tokens of each sequence
    prompt_lens  [s] i32             of these, the prompt's
    features     [n, width] bf16     the target's hidden states after each token
    top_ids      [n, k] i32          the k likeliest tokens in this token's place; -1 in prompts
    top_probs    [n, k] f16          and their probabilities

Exercised by `pytest tests/cpu/spec/test_training.py`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from hasten.core.loading.safetensors_files import open_safetensors_file
from hasten.core.loading.safetensors_writer import write_safetensors

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

NUM_TEACHER_TOKENS = 8
"""Alternatives kept per token: they hold nearly all of the probability."""

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Passage:
    """One prompt and its answer; arrays as in a shard."""

    tokens: Array
    prompt_len: int
    features: Array
    top_ids: Array
    top_probs: Array


class ShardWriter:
    """Collects sequences and writes a shard whenever there are enough tokens."""

    def __init__(self, folder: Path, tokens_per_shard: int = 20_000) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._tokens_per_shard = tokens_per_shard
        self._pending: list[Passage] = []
        self._next_idx = len(shard_paths(folder))

    def add(self, sequence: Passage) -> bool:
        """Returns whether a shard was written: what it holds is safe now."""
        self._pending.append(sequence)
        if sum(len(each.tokens) for each in self._pending) < self._tokens_per_shard:
            return False
        self.flush()
        return True

    def flush(self) -> None:
        if not self._pending:
            return
        path = self._folder / f"shard-{self._next_idx:05}.safetensors"
        arrays = {
            "tokens": np.concatenate([each.tokens for each in self._pending]),
            "lens": np.array([len(each.tokens) for each in self._pending], np.int32),
            "prompt_lens": np.array([each.prompt_len for each in self._pending], np.int32),
            "features": np.concatenate([each.features for each in self._pending]),
            "top_ids": np.concatenate([each.top_ids for each in self._pending]),
            "top_probs": np.concatenate([each.top_probs for each in self._pending]),
        }
        write_safetensors(path, arrays)
        self._next_idx += 1
        self._pending.clear()


class Corpus:
    """All sequences of a folder, mapped into memory."""

    def __init__(self, folder: Path) -> None:
        self._sequences: list[tuple[dict[str, Array], int, int, int]] = []
        for path in shard_paths(folder):
            stored = open_safetensors_file(path).tensors
            arrays = {key: tensor.array() for key, tensor in stored.items()}
            ends = np.cumsum(arrays["lens"])
            for idx, end in enumerate(ends.tolist()):
                begin = end - int(arrays["lens"][idx])
                self._sequences.append((arrays, begin, end, int(arrays["prompt_lens"][idx])))

    def __len__(self) -> int:
        return len(self._sequences)

    @property
    def num_tokens(self) -> int:
        return sum(end - begin for _, begin, end, _ in self._sequences)

    def __getitem__(self, idx: int) -> Passage:
        arrays, begin, end, prompt_len = self._sequences[idx]
        part = {key: arrays[key][begin:end] for key in ("tokens", "features", "top_ids")}
        return Passage(prompt_len=prompt_len, top_probs=arrays["top_probs"][begin:end], **part)

    def prompt(self, idx: int) -> Array:
        """The tokens of a sequence's prompt."""
        arrays, begin, _, prompt_len = self._sequences[idx]
        return arrays["tokens"][begin : begin + prompt_len]

    def frequent_tokens(self, count: int, always: Sequence[int] = ()) -> npt.NDArray[np.int32]:
        """The `count` tokens that answers hold most often, `always` among them, sorted by id."""
        counts: Counter[int] = Counter()
        for arrays, begin, end, prompt_len in self._sequences:
            counts.update(arrays["tokens"][begin + prompt_len : end].tolist())
            counts.update(arrays["tokens"][begin : begin + prompt_len].tolist())
        ranked = dict.fromkeys([*always, *(token for token, _ in counts.most_common())])
        ranked.update(dict.fromkeys(range(count)))
        return np.sort(np.array(list(ranked)[:count], np.int32))


def shard_paths(folder: Path) -> list[Path]:
    return sorted(folder.glob("shard-*.safetensors"))
