"""What a request's history does to its next logits: penalties, bias, bad words, minimum length.

`RowEdits` answers, for the row that follows any number of not yet accepted drafts, which tokens
were seen (for penalties) and what is added to which logit. Only requests that use one of these
have one; all others cost nothing. `SlotParameters` holds the plain numbers of every request, by
slot (its block-table row), so that a step gathers them without a loop.

Pure numpy. Exercised by `pytest tests/unit/core/test_sampling_state.py`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hasten.core.params import GenerationParams
    from hasten.core.request import Request
    from hasten.kernels.step import F32, I32, U32, U64

Entries = tuple["I32", "F32"]
"""Token ids, each at most once, and the value that goes with each."""


class TokenCounts:
    """The distinct tokens of a request and how often its output holds each (0: prompt only).

    Grows and shrinks at the end, so drafts can be counted for the rows behind them and taken
    back: `push` and `pop` nest like a stack.
    """

    def __init__(self, prompt_token_ids: Sequence[int]) -> None:
        distinct = list(dict.fromkeys(prompt_token_ids))
        self._index = {token_id: i for i, token_id in enumerate(distinct)}
        self._ids = np.array(distinct, np.int32)
        self._values = np.zeros(len(distinct), np.float32)

    def push(self, token_id: int) -> None:
        """Count one more output token."""
        size = len(self._index)
        i = self._index.setdefault(token_id, size)
        if i == size:
            self._reserve(size + 1)
            self._ids[i] = token_id
            self._values[i] = 0.0
        self._values[i] += 1.0

    def pop(self, token_id: int, *, was_new: bool) -> None:
        """Take back the last `push`; `was_new` says that it added the token to the table."""
        self._values[self._index[token_id]] -= 1.0
        if was_new:
            del self._index[token_id]

    def __contains__(self, token_id: int) -> bool:
        return token_id in self._index

    def entries(self) -> Entries:
        """The table as it stands; views, valid until the next change."""
        size = len(self._index)
        return self._ids[:size], self._values[:size]

    def _reserve(self, size: int) -> None:
        if size > len(self._ids):
            grown = max(size, 2 * len(self._ids))
            self._ids = np.resize(self._ids, grown)
            self._values = np.resize(self._values, grown)


class BiasRules:
    """What is added to a request's logits, as a function of the tokens before the row."""

    def __init__(self, params: GenerationParams) -> None:
        self._base = dict(params.logit_bias)
        self._base.update({word[0]: -math.inf for word in params.bad_words if len(word) == 1})
        self._words = [word for word in params.bad_words if len(word) > 1]
        self._min_tokens = params.min_tokens
        self._until_min = dict.fromkeys(params.terminal_token_ids, -math.inf)
        self.tail_len = max((len(word) - 1 for word in self._words), default=0)
        self._fixed = {
            early: _arrays(self._base | (self._until_min if early else {}))
            for early in (False, True)
        }

    def entries(self, tail: Sequence[int], num_output_tokens: int) -> Entries:
        """For the row behind `tail` (at least the last `tail_len` tokens, or all there are)."""
        early = num_output_tokens < self._min_tokens
        banned = [word[-1] for word in self._words if _ends_with(tail, word[:-1])]
        if not banned:
            return self._fixed[early]
        merged = self._base | (self._until_min if early else {})
        return _arrays(merged | dict.fromkeys(banned, -math.inf))


class RowEdits:
    """The history-dependent part of one request's sampling."""

    def __init__(self, request: Request) -> None:
        params = request.params
        self._request = request
        self._counts = TokenCounts(request.prompt_token_ids) if _has_penalties(params) else None
        self._num_counted = request.num_prompt_tokens
        self._bias = BiasRules(params) if _has_bias(params) else None

    @staticmethod
    def needed_by(params: GenerationParams) -> bool:
        return _has_penalties(params) or _has_bias(params)

    def counts(self, drafts: Sequence[int]) -> list[Entries | None]:
        """Seen tokens for the row behind the accepted tokens, and behind each further draft.

        The arrays are valid until the next call.
        """
        if self._counts is None:
            return [None] * (len(drafts) + 1)
        self._count_accepted(self._counts)
        if not drafts:
            return [self._counts.entries()]
        return _counts_with_drafts(self._counts, drafts)

    def bias(self, drafts: Sequence[int]) -> list[Entries | None]:
        """Added values for the same rows."""
        if self._bias is None:
            return [None] * (len(drafts) + 1)
        tail_len = self._bias.tail_len
        tail = [*(self._request.token_ids[-tail_len:] if tail_len else ()), *drafts]
        num_accepted, num_output = len(tail) - len(drafts), self._request.num_output_tokens
        return [
            self._bias.entries(tail[: num_accepted + i], num_output + i)
            for i in range(len(drafts) + 1)
        ]

    def _count_accepted(self, counts: TokenCounts) -> None:
        tokens = self._request.token_ids
        for i in range(self._num_counted, len(tokens)):
            counts.push(tokens[i])
        self._num_counted = len(tokens)


def _counts_with_drafts(counts: TokenCounts, drafts: Sequence[int]) -> list[Entries | None]:
    """Copies of the table before and after each draft; leaves it as it was."""
    rows: list[Entries | None] = [_copied(counts.entries())]
    undo: list[tuple[int, bool]] = []
    for token_id in drafts:
        undo.append((token_id, token_id not in counts))
        counts.push(token_id)
        rows.append(_copied(counts.entries()))
    for token_id, was_new in reversed(undo):
        counts.pop(token_id, was_new=was_new)
    return rows


def _copied(entries: Entries) -> Entries:
    ids, values = entries
    return ids.copy(), values.copy()


class SlotParameters:
    """The plain sampling numbers of the requests that run, one column per slot."""

    def __init__(self, num_slots: int, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        # temperature, top_p, min_p, repetition, frequency and presence penalty
        self.floats = np.zeros((6, num_slots), np.float32)
        self.ints = np.zeros((4, num_slots), np.int32)  # top_k, sample_idx, num_logprobs, mask_idx
        self.seeds = np.zeros(num_slots, np.uint64)
        # [num_slots + rows of grammars, ceil(vocab / 32)], made by the first that asks
        self.masks: U32 | None = None
        self._has_mask = np.zeros(num_slots, np.bool_)

    @property
    def any_mask(self) -> bool:
        return self.masks is not None and bool(self._has_mask.any())

    def bind(self, slot: int, request: Request) -> None:
        """Write the parameters of the request that now owns `slot`."""
        params = request.params
        self.floats[:, slot] = (
            params.temperature,
            params.top_p,
            params.min_p,
            params.repetition_penalty,
            params.frequency_penalty,
            params.presence_penalty,
        )
        allowed = params.allowed_token_ids
        self._has_mask[slot] = allowed is not None
        num_logprobs = -1 if params.logprobs is None else params.logprobs
        mask_idx = -1 if allowed is None else slot
        self.ints[:, slot] = (params.top_k, request.sample_idx, num_logprobs, mask_idx)
        self.seeds[slot] = params.seed
        if allowed is not None:
            self._write_mask(slot, np.array(allowed, np.int32))

    def take(self, slots: I32) -> tuple[F32, I32, U64]:
        """Columns of `slots`: floats [6, L], ints [4, L], seeds [L]."""
        return self.floats.take(slots, 1), self.ints.take(slots, 1), self.seeds.take(slots)

    def reserve_masks(self, num_rows: int) -> U32:
        """All masks: those of the slots, and behind them `num_rows` or more for others."""
        num_wanted = len(self.seeds) + num_rows
        if self.masks is None:
            self.masks = np.zeros((num_wanted, -(-self._vocab_size // 32)), np.uint32)
        elif len(self.masks) < num_wanted:
            self.masks = np.resize(self.masks, (2 * num_wanted, self.masks.shape[1]))
        return self.masks

    def _write_mask(self, slot: int, allowed: I32) -> None:
        mask = self.reserve_masks(0)[slot]
        mask[:] = 0
        bits = np.left_shift(np.uint32(1), (allowed % 32).astype(np.uint32))
        np.bitwise_or.at(mask, allowed // 32, bits)


def _has_penalties(params: GenerationParams) -> bool:
    return (
        params.repetition_penalty != 1.0
        or params.frequency_penalty != 0.0
        or params.presence_penalty != 0.0
    )


def _has_bias(params: GenerationParams) -> bool:
    return bool(params.logit_bias or params.bad_words or params.min_tokens)


def _ends_with(tokens: Sequence[int], suffix: Sequence[int]) -> bool:
    return len(tokens) >= len(suffix) and tuple(tokens[-len(suffix) :]) == tuple(suffix)


def _arrays(entries: dict[int, float]) -> Entries:
    return np.array(list(entries), np.int32), np.array(list(entries.values()), np.float32)
