"""Frozen text, teacher-forced: what both models expect at each position of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from hasten.evals.blocks.limits import check_limits
from hasten.evals.layers import LayerDifference, compare_layers
from hasten.evals.rows import DataError
from hasten.evals.target import CannotMeasureError, Scored
from hasten.evals.token_pairs import TOKEN_MEASURES, PairedWindow, pair_window, token_measures

if TYPE_CHECKING:
    from hasten.evals.gate import Measure
    from hasten.evals.pair import Pair


class TextResult(msgspec.Struct, frozen=True, tag="text"):
    """`layers` compares what the layers added, on the first window; empty if unknown."""

    windows: list[PairedWindow]
    layers: list[LayerDifference]


class TextBlock(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag_field="kind",
    tag="text",
    forbid_unknown_fields=True,
):
    """`num_windows` windows of `window_len` tokens, spread evenly over the source's texts.

    Each window starts afresh; its first token is given, the others are predicted.
    """

    name: str
    source: str = "hasten:text"
    num_windows: int
    window_len: int
    limits: dict[str, float] = {}

    def __post_init__(self) -> None:
        check_limits(self.name, self.limits, TOKEN_MEASURES)
        if self.num_windows < 1 or self.window_len < 2:
            raise ValueError(f"{self.name}: needs at least one window of two tokens")

    def observe(self, pair: Pair) -> TextResult:
        windows = self._cut(pair)
        paired = []
        for done, (name, token_ids) in enumerate(windows):
            pair.progress.advance(done, len(windows))
            asked = Scored(token_ids, start=1)
            expected = [target.distribution(asked) for target in pair.both]
            paired.append(pair_window(pair, name, token_ids, 1, expected))
        return TextResult(paired, compare_layers(pair, windows[0][1]))

    def measures(self, result: TextResult) -> list[Measure]:
        return token_measures(self.name, result.windows, self.limits)

    def _cut(self, pair: Pair) -> list[tuple[str, tuple[int, ...]]]:
        """(name, token ids) of each window. The name tells in which text it begins, and where."""
        if self.window_len > pair.max_len:
            raise CannotMeasureError(
                f"windows of {self.window_len} tokens exceed what the models hold ({pair.max_len})"
            )
        stream: list[int] = []
        origins: list[tuple[str, int]] = []
        for name, text in pair.data.texts(self.source):
            token_ids = encode_alike(pair, text)
            stream.extend(token_ids)
            origins.extend((name, offset) for offset in range(len(token_ids)))
        last = len(stream) - self.window_len
        if last < 0:
            raise DataError(f"{self.source}: {len(stream)} tokens, a window has {self.window_len}")
        starts = [round(i * last / max(self.num_windows - 1, 1)) for i in range(self.num_windows)]
        return [
            ("{}+{}".format(*origins[start]), tuple(stream[start : start + self.window_len]))
            for start in starts
        ]


def encode_alike(pair: Pair, text: str) -> tuple[int, ...]:
    """Token ids of `text`, which both sides must share to be compared token by token."""
    base, cand = (target.encode(text) for target in pair.both)
    if base != cand:
        at = next(
            (i for i, (one, other) in enumerate(zip(base, cand, strict=False)) if one != other),
            min(len(base), len(cand)),
        )
        raise CannotMeasureError(
            f"the two sides tokenise differently (first at token {at} of {text[:40]!r}...); "
            "they cannot be compared token by token"
        )
    return base
