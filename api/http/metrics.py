"""Prometheus metrics: what the engine counts, and the latencies that clients see.

Inter-token latency is weighted by tokens: a step that gives k tokens after t seconds counts as k
observations of t / k, so the histogram's sum is the time spent decoding.
"""

from __future__ import annotations

from contextlib import aclosing
from time import perf_counter
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator, Mapping

    from hasten.api.text.sample_text import SampleDelta
    from hasten.core.messages import Stats
    from prometheus_client.metrics_core import Metric

_TTFT_BUCKETS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
_ITL_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)

_COUNTERS = {
    "num_preemptions": "requests put back to make room",
    "num_prompt_tokens": "prompt tokens of all requests",
    "num_generated_tokens": "tokens generated",
    "num_cached_prompt_tokens": "prompt tokens found in the prefix cache",
    "num_recomputed_tokens": "tokens computed again after a preemption",
    "num_steps": "engine steps",
    "num_draft_tokens": "drafted tokens verified",
    "num_accepted_draft_tokens": "drafted tokens that were right and kept",
}
_GAUGES = {
    "num_running": "requests in the running batch",
    "num_waiting": "requests waiting",
    "speculation_gain": "estimated rate of tokens over that without drafts",
}
_BLOCK_GAUGES = {"num_free_blocks": "free KV blocks", "num_total_blocks": "KV blocks"}


class _EngineStats(Collector):
    """Shows the latest `Stats`."""

    def __init__(self) -> None:
        self.latest: Stats | None = None

    def collect(self) -> Iterator[Metric]:
        if self.latest is None:
            return
        for name, text in _COUNTERS.items():
            yield CounterMetricFamily(f"hasten_{name}", text, value=getattr(self.latest, name))
        for name, text in _GAUGES.items():
            yield GaugeMetricFamily(f"hasten_{name}", text, value=getattr(self.latest, name))
        for name, text in _BLOCK_GAUGES.items():
            family = GaugeMetricFamily(f"hasten_{name}", text, labels=["kv_group"])
            for group_id, value in enumerate(getattr(self.latest, name)):
                family.add_metric([str(group_id)], value)
            yield family
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


class Metrics:
    """One server's metrics, in a registry of their own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._stats = _EngineStats()
        self._registry.register(self._stats)
        self._ttft = Histogram(
            "hasten_time_to_first_token_seconds",
            "from the request to its first token",
            buckets=_TTFT_BUCKETS,
            registry=self._registry,
        )
        self._itl = Histogram(
            "hasten_inter_token_latency_seconds",
            "between the tokens of one sample",
            buckets=_ITL_BUCKETS,
            registry=self._registry,
        )
        self._finished = Counter(
            "hasten_samples_finished",
            "samples that ran to their end",
            ["finish_reason"],
            registry=self._registry,
        )

    def render(self, stats: Stats | None) -> bytes:
        """The exposition; `stats` None leaves the engine's figures out."""
        self._stats.latest = stats
        return generate_latest(self._registry)

    async def watch(self, deltas: AsyncGenerator[SampleDelta]) -> AsyncGenerator[SampleDelta]:
        """Pass deltas through, timing them."""
        begin_s = perf_counter()
        last_s: dict[int, float] = {}
        async with aclosing(deltas):
            async for delta in deltas:
                now_s = perf_counter()
                self._observe(delta, now_s - last_s.get(delta.sample_idx, begin_s), last_s)
                last_s[delta.sample_idx] = now_s
                yield delta

    def _observe(self, delta: SampleDelta, gap_s: float, seen: Mapping[int, float]) -> None:
        if delta.sample_idx not in seen:
            self._ttft.observe(gap_s)
        else:
            for _ in range(delta.num_tokens):
                self._itl.observe(gap_s / delta.num_tokens)
        if delta.finish_reason is not None:
            self._finished.labels(delta.finish_reason).inc()
