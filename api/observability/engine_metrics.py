"""The engine's `Stats` as Prometheus metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hasten.core.messages import Stats
    from prometheus_client.metrics_core import Metric

COUNTERS = {
    "num_preemptions": "requests put back to make room",
    "num_prompt_tokens": "prompt tokens of all requests",
    "num_generated_tokens": "tokens generated",
    "num_cached_prompt_tokens": "prompt tokens found in the prefix cache",
    "num_recomputed_tokens": "tokens computed again after a preemption",
    "num_steps": "engine steps",
    "num_draft_tokens": "drafted tokens verified",
    "num_accepted_draft_tokens": "drafted tokens that were right and kept",
    "step_seconds": "spent computing steps",
    "predicted_step_seconds": "what those steps were expected to take",
}
GAUGES = {
    "num_running": "requests in the running batch",
    "num_waiting": "requests waiting",
    "speculation_gain": "estimated rate of tokens over that without drafts",
    "predicted_wait_s": "seconds to the first token for a short prompt that came now",
}
BLOCK_GAUGES = {"num_free_blocks": "free KV blocks", "num_total_blocks": "KV blocks"}


class EngineMetrics(Collector):
    """Shows the latest `Stats`."""

    def __init__(self) -> None:
        self.latest: Stats | None = None

    def collect(self) -> Iterator[Metric]:
        if self.latest is None:
            return
        for name, text in COUNTERS.items():
            yield CounterMetricFamily(f"hasten_{name}", text, value=getattr(self.latest, name))
        for name, text in GAUGES.items():
            yield GaugeMetricFamily(f"hasten_{name}", text, value=getattr(self.latest, name))
        for name, text in BLOCK_GAUGES.items():
            family = GaugeMetricFamily(f"hasten_{name}", text, labels=["kv_group"])
            for group_id, value in enumerate(getattr(self.latest, name)):
                family.add_metric([str(group_id)], value)
            yield family
        phases = CounterMetricFamily(
            "hasten_phase_seconds", "spent in each part of a step", labels=["phase"]
        )
        for phase, seconds in self.latest.phase_seconds.items():
            phases.add_metric([phase], seconds)
        yield phases
        yield from _draft_counters(self.latest)


def _draft_counters(stats: Stats) -> Iterator[Metric]:
    """Drafts by depth and by position; what was verified in vain is named too."""
    yield CounterMetricFamily(
        "hasten_num_wasted_draft_tokens",
        "drafted tokens verified in vain",
        value=stats.num_draft_tokens - stats.num_accepted_draft_tokens,
    )
    for name, text, label, values in (
        ("draft_depths", "times that so many drafts were verified", "depth", stats.draft_depths),
        ("accepted_drafts", "drafts right and kept", "position", stats.accepted_drafts),
    ):
        family = CounterMetricFamily(f"hasten_{name}", text, labels=[label])
        for idx, value in enumerate(values):
            family.add_metric([str(idx)], value)
        yield family
