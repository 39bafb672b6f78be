"""A task of lm-evaluation-harness, item by item on both sides."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from hasten.evals.blocks.limits import check_limits
from hasten.evals.gate import Measure
from hasten.evals.harm import BootstrapHarm, PairedLoss
from hasten.evals.target import CannotMeasureError

if TYPE_CHECKING:
    from hasten.evals.harm import Harm
    from hasten.evals.pair import Pair


class HarnessItem(msgspec.Struct, frozen=True):
    """An item's metric on both sides; more is better."""

    name: str
    baseline: float
    candidate: float


class HarnessResult(msgspec.Struct, frozen=True, tag="harness"):
    items: list[HarnessItem]


class HarnessBlock(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag_field="kind",
    tag="harness",
    forbid_unknown_fields=True,
):
    """The first `num_items` items of `task`, judged by a metric that items have one by one.

    `folder` holds the task's definition (in --data DIR), where it is not one of the harness's own,
    whose data sets the package `datasets` fetches.
    """

    name: str
    task: str
    metric: str = "acc"
    num_items: int
    folder: str | None = None
    limits: dict[str, float] = {}

    def __post_init__(self) -> None:
        check_limits(self.name, self.limits, ("score_loss",))

    def observe(self, pair: Pair) -> HarnessResult:
        try:
            from hasten.evals.harness import run_task
        except ModuleNotFoundError as error:
            raise CannotMeasureError(
                f"needs lm-evaluation-harness ({error.name} is not installed): pip install lm_eval"
            ) from error
        folder = None if self.folder is None else pair.data.resolve(self.folder)
        base, cand = (
            run_task(target, self.task, self.metric, self.num_items, folder, pair.progress)
            for target in pair.both
        )
        pair.data.hashes[f"lm_eval:{self.task}"] = base.data_hash
        return HarnessResult(
            [HarnessItem(name, base.values[name], cand.values[name]) for name in base.values]
        )

    def measures(self, result: HarnessResult) -> list[Measure]:
        sides = [[i.baseline for i in result.items], [i.candidate for i in result.items]]
        means = " and ".join(f"{sum(side) / len(side):.3f}" for side in sides)
        note = f"{self.metric} {means} over {len(result.items)} items"
        harm = _loss(result.items)
        name = "score_loss"
        return [Measure(f"{self.name}.{name}", "", harm, self.limits.get(name), note)]


def _loss(items: list[HarnessItem]) -> Harm:
    """Of right and wrong, the paired loss of accuracy; of other numbers, the mean fall."""
    if {item.baseline for item in items} | {item.candidate for item in items} <= {0.0, 1.0}:
        pairs = [[bool(item.baseline) for item in items], [bool(item.candidate) for item in items]]
        return PairedLoss.of(*pairs)
    return BootstrapHarm.mean([[item.baseline - item.candidate] for item in items], "items")
