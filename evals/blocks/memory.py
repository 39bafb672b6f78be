"""What both sides take of memory: weights, and the KV cache per token. Counted, not sampled."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from hasten.evals.blocks.limits import check_limits
from hasten.evals.gate import Measure
from hasten.evals.harm import Certain
from hasten.evals.target import Footprint

if TYPE_CHECKING:
    from hasten.evals.pair import Pair


class MemoryResult(msgspec.Struct, frozen=True, tag="memory"):
    baseline: Footprint
    candidate: Footprint


class MemoryBlock(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag_field="kind",
    tag="memory",
    forbid_unknown_fields=True,
):
    """Ratios above 1 take more than the baseline."""

    name: str
    limits: dict[str, float] = {}

    def __post_init__(self) -> None:
        check_limits(self.name, self.limits, ("weights_ratio", "kv_ratio"))

    def observe(self, pair: Pair) -> MemoryResult:
        return MemoryResult(pair.baseline.footprint(), pair.candidate.footprint())

    def measures(self, result: MemoryResult) -> list[Measure]:
        base, cand = result.baseline, result.candidate
        return [
            self._ratio("weights_ratio", base.weights_bytes, cand.weights_bytes, "bytes"),
            self._ratio(
                "kv_ratio", base.kv_bytes_per_token, cand.kv_bytes_per_token, "bytes per token"
            ),
        ]

    def _ratio(self, name: str, base: float, cand: float, unit: str) -> Measure:
        note = f"{base:,.0f} and {cand:,.0f} {unit}"
        harm = Certain(cand / base)
        return Measure(f"{self.name}.{name}", "ratio", harm, self.limits.get(name), note)
