"""Where the damage is: what the pattern of failures points at.

Rules of thumb over what was seen, each with its evidence; they name a place to look, not a proof.
Exercised by `pytest tests/unit/evals/test_diagnosis.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import numpy as np
from hasten.evals.blocks.chat import ChatResult
from hasten.evals.blocks.invariance import InvarianceResult
from hasten.evals.blocks.text import TextResult
from hasten.evals.gate import Verdict
from hasten.evals.layers import parting

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hasten.evals.layers import LayerDifference
    from hasten.evals.record import Record
    from hasten.evals.token_pairs import PairedWindow

T = TypeVar("T")

STRIDE = 64
"""Positions are looked at in stretches of this many tokens; in eighths where texts are short."""
GROWTH = 3.0
"""Damage that grows along the text reaches this multiple of what it is at the start."""


def diagnose(record: Record) -> list[str]:
    """Lines for people, most telling first; empty when nothing failed."""
    if record.verdict is not Verdict.FAIL:
        return []
    rules: Sequence[Callable[[Record], list[str]]] = (
        _template,
        _decoding,
        _layers,
        _positions,
        _repeats,
    )
    return [line for rule in rules for line in rule(record)] or _spread(record)


def _template(record: Record) -> list[str]:
    lines = []
    for name, result in _results(record, ChatResult):
        changed = [answer.name for answer in result.answers if not answer.same_prompt]
        if changed:
            lines.append(
                f"{name}: the two sides render {len(changed)} of {len(result.answers)} chat "
                f"prompts differently (first {changed[0]}): look at the chat template"
            )
    return lines


def _decoding(record: Record) -> list[str]:
    failed = _failed(record)
    lines = []
    for name, result in _results(record, ChatResult):
        if f"{name}.decode_errors" not in failed:
            continue
        places = [f"{a.name}[{at}]" for a in result.answers for at in a.wrong]
        lines.append(
            f"{name}: {len(places)} decoded tokens are not what the candidate itself holds for "
            f"most likely when it reads the text at once ({', '.join(places[:4])}, ...): "
            "decoding is at fault (sampler, cache, positions), not the weights"
        )
    return lines


def _layers(record: Record) -> list[str]:
    failed = _failed(record)
    lines = []
    for name, result in _results(record, TextResult):
        found = parting(result.layers)
        if found is not None and any(one.startswith(f"{name}.") for one in failed):
            lines.append(f"{name}: {_parting_line(found, first=found == result.layers[0])}")
    return lines


def _parting_line(found: LayerDifference, *, first: bool) -> str:
    seen = f"the two sides part at {found.name} (what it adds differs by {found.difference:.1%}"
    if first:
        return (
            f"{seen}, and it is the first): look at what all layers share (embedding, positions, "
            "rope, windows), or at this one"
        )
    return (
        f"{seen}; every layer before it by less than a third of that): look at this layer's "
        "weights, scales, positions and cache"
    )


def _positions(record: Record) -> list[str]:
    failed = _failed(record)
    lines = []
    for name, result in _results(record, TextResult):
        if f"{name}.kl_late" not in failed:
            continue
        stride, by_position = kl_by_position(result.windows)
        onset = _onset(by_position)
        if onset is not None:
            lines.append(
                f"{name}: KL grows along the text, from {by_position[0]:.4f} at the start to "
                f"{max(by_position):.4f}, {GROWTH:g}-fold from about position {onset * stride}: "
                "look at positions (rope), windows, and context that is cut off"
            )
    return lines


def _repeats(record: Record) -> list[str]:
    return [
        f"{name}: the answer to {repeats.name} changes with: {', '.join(repeats.differing())}"
        for name, result in _results(record, InvarianceResult)
        for repeats in result.prompts
        if repeats.differing()
    ]


def _spread(record: Record) -> list[str]:
    """No pattern: weights or arithmetic, everywhere. Names the text that suffers most."""
    lines = []
    results: list[tuple[str, TextResult | ChatResult]] = [
        *_results(record, TextResult),
        *_results(record, ChatResult),
    ]
    for name, result in results:
        if not any(failed.startswith(f"{name}.") for failed in _failed(record)):
            continue
        worst = max(result.windows, key=lambda window: float(np.mean(window.kl)))
        whole = float(np.mean(np.concatenate([window.kl for window in result.windows])))
        lines.append(
            f"{name}: damage at all positions (mean KL {whole:.4f}; worst in {worst.name}, "
            f"{np.mean(worst.kl):.4f}): look at weights, scales and arithmetic"
        )
    return lines


def kl_by_position(windows: Sequence[PairedWindow]) -> tuple[int, list[float]]:
    """(stride, mean KL in each stretch of so many positions), over windows that reach it whole."""
    longest = max(len(window.kl) for window in windows)
    stride = min(STRIDE, max(longest // 8, 1))
    means = []
    for begin in range(0, longest, stride):
        values = [w.kl[begin : begin + stride] for w in windows if len(w.kl) >= begin + stride]
        if values:
            means.append(float(np.mean(np.concatenate(values))))
    return stride, means


def _onset(by_position: Sequence[float]) -> int | None:
    """The first stretch from which KL stays at a multiple of what it is at the start.

    Where nothing is wrong at the start, a share of the worst stretch counts instead.
    """
    high = max(GROWTH * by_position[0], max(by_position) / 10)
    stretches = range(1, len(by_position))
    return next((i for i in stretches if min(by_position[i:]) >= high), None)


def _results(record: Record, kind: type[T]) -> list[tuple[str, T]]:
    return [(block.name, block.result) for block in record.blocks if isinstance(block.result, kind)]


def _failed(record: Record) -> set[str]:
    return {j.name for j in record.judgements if j.verdict is Verdict.FAIL}
