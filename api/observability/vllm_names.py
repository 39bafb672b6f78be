"""Our metrics under the names that vLLM gives them, so that what reads those works unchanged.

Only what means the same is listed. Source of the names: vLLM's documentation, "Production
metrics" (V1). Exercised by `pytest tests/unit/api/test_observability.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hasten.api.http.metrics import Metrics
    from hasten.api.observability.engine_metrics import EngineMetrics
    from hasten.core.messages import Stats
    from prometheus_client import Histogram

COUNTERS = {
    "num_preemptions": "num_preemptions",
    "prompt_tokens": "num_prompt_tokens",
    "generation_tokens": "num_generated_tokens",
    "prefix_cache_queries": "num_prompt_tokens",
    "prefix_cache_hits": "num_cached_prompt_tokens",
    "prompt_tokens_cached": "num_cached_prompt_tokens",
    "spec_decode_num_draft_tokens": "num_draft_tokens",
    "spec_decode_num_accepted_tokens": "num_accepted_draft_tokens",
}
GAUGES = {"num_requests_running": "num_running", "num_requests_waiting": "num_waiting"}


class VllmNames(Collector):
    """The same numbers again, labelled with the model's name as vLLM does."""

    def __init__(self, metrics: Metrics, engine: EngineMetrics) -> None:
        self._metrics = metrics
        self._engine = engine
        self._labels: dict[str, str] = {}
        self._block_size = 0

    def name_model(self, model_name: str, block_size: int) -> None:
        self._labels = {"model_name": model_name, "engine": "0"}
        self._block_size = block_size

    def collect(self) -> Iterator[Metric]:
        if not self._labels:
            return
        metrics = self._metrics
        for name, histogram in (
            ("time_to_first_token_seconds", metrics.ttft),
            ("inter_token_latency_seconds", metrics.itl),
            ("e2e_request_latency_seconds", metrics.latency),
            ("request_prompt_tokens", metrics.prompt_len),
            ("request_generation_tokens", metrics.output_len),
            *metrics.phases.by_name.items(),
        ):
            yield self._histogram(name, histogram)
        yield self._finished()
        if self._engine.latest is not None:
            yield from self._of_engine(self._engine.latest)

    def _of_engine(self, stats: Stats) -> Iterator[Metric]:
        labels, values = list(self._labels), list(self._labels.values())
        for name, ours in COUNTERS.items():
            counter = CounterMetricFamily(f"vllm:{name}", f"hasten_{ours}", labels=labels)
            counter.add_metric(values, getattr(stats, ours))
            yield counter
        gauges = {name: float(getattr(stats, ours)) for name, ours in GAUGES.items()}
        free, total = sum(stats.num_free_blocks), sum(stats.num_total_blocks)
        gauges["kv_cache_usage_perc"] = 1 - free / max(1, total)
        for name, value in gauges.items():
            gauge = GaugeMetricFamily(f"vllm:{name}", "of this server", labels=labels)
            gauge.add_metric(values, value)
            yield gauge
        yield self._drafts(stats, labels, values)
        yield self._accepted(stats, labels, values)
        yield self._cache_config(stats)

    def _drafts(self, stats: Stats, labels: list[str], values: list[str]) -> Metric:
        family = CounterMetricFamily("vllm:spec_decode_num_drafts", "verifications", labels=labels)
        family.add_metric(values, sum(stats.draft_depths[1:]))
        return family

    def _accepted(self, stats: Stats, labels: list[str], values: list[str]) -> Metric:
        family = CounterMetricFamily(
            "vllm:spec_decode_num_accepted_tokens_per_pos",
            "hasten_accepted_drafts",
            labels=[*labels, "position"],
        )
        for position, count in enumerate(stats.accepted_drafts):
            family.add_metric([*values, str(position)], count)
        return family

    def _cache_config(self, stats: Stats) -> Metric:
        """What gateways that choose a server by its cache look for."""
        size = {"block_size": self._block_size, "num_gpu_blocks": sum(stats.num_total_blocks)}
        labels = self._labels | {name: str(value) for name, value in size.items()}
        family = GaugeMetricFamily("vllm:cache_config_info", "the KV cache", labels=list(labels))
        family.add_metric(list(labels.values()), 1)
        return family

    def _histogram(self, name: str, histogram: Histogram) -> Metric:
        (ours,) = histogram.collect()
        family = Metric(f"vllm:{name}", ours.documentation, "histogram")
        for sample in ours.samples:
            if not sample.name.endswith("_created"):
                renamed = f"vllm:{name}{sample.name.removeprefix(ours.name)}"
                family.add_sample(renamed, sample.labels | self._labels, sample.value)
        return family

    def _finished(self) -> Metric:
        family = CounterMetricFamily(
            "vllm:request_success",
            "samples that ran to their end",
            labels=[*self._labels, "finished_reason"],
        )
        (ours,) = self._metrics.finished.collect()
        for sample in ours.samples:
            if sample.name.endswith("_total"):
                reason = sample.labels["finish_reason"]
                family.add_metric([*self._labels.values(), reason], sample.value)
        return family
