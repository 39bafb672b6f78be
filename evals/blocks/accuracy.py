"""Items that are right or wrong, on both sides."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from hasten.evals.gate import Measure
from hasten.evals.harm import BootstrapHarm, PairedLoss
from hasten.evals.statistics import mcnemar

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class ItemResult(msgspec.Struct, frozen=True, kw_only=True):
    """One item. `loss`: how much less likely the right answer became, in nats, if known."""

    name: str
    baseline: bool
    candidate: bool
    loss: float | None = None
    detail: str = ""


def accuracy_measures(
    block: str, items: Sequence[ItemResult], limits: Mapping[str, float]
) -> list[Measure]:
    """The paired loss of accuracy, and of the right answers' log-likelihood where it is known."""
    base = [item.baseline for item in items]
    cand = [item.candidate for item in items]
    loss = PairedLoss.of(base, cand)
    note = (
        f"{sum(base)} and {sum(cand)} of {len(items)} right; {loss.lost} lost, {loss.won} won, "
        f"McNemar p = {mcnemar(loss.lost, loss.won):.3f}"
    )
    measures = [Measure(f"{block}.accuracy_loss", "share", loss, limits.get("accuracy_loss"), note)]
    losses = [[item.loss] for item in items if item.loss is not None]
    if losses:
        harm = BootstrapHarm.mean(losses, "items")
        name = "likelihood_loss"
        measures.append(Measure(f"{block}.{name}", "nats", harm, limits.get(name)))
    return measures
