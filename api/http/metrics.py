"""Prometheus metrics: what the engine counts, and the latencies that clients see.

Inter-token latency is weighted by tokens: a step that gives k tokens after t seconds counts as k
observations of t / k, so the histogram's sum is the time spent decoding. A beam search answers all
at once, at the end: of its first tokens nothing is known, and nothing is observed.

Ours are called `hasten_...`; dashboards and gateways that know vLLM find the same numbers under
its names (`api.observability.vllm_names`). Exercised by
`pytest tests/unit/api/test_observability.py`.
"""

from __future__ import annotations

from contextlib import aclosing, contextmanager
from time import perf_counter
from typing import TYPE_CHECKING

from hasten.api.client import RequestRefusedError
from hasten.api.observability.engine_metrics import EngineMetrics
from hasten.api.observability.phases import LENGTH_BUCKETS, Phases, RequestClock
from hasten.api.observability.recent import RecentLatency
from hasten.api.observability.vllm_names import VllmNames
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator, Mapping

    from hasten.api.security.caller import Caller
    from hasten.api.text.sample_text import SampleDelta
    from hasten.core.messages import AddRequest, Stats

TTFT_BUCKETS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
ITL_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
REQUEST_BUCKETS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


class Metrics:
    """One server's metrics, in a registry of their own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._engine = EngineMetrics()
        self.ttft = self._histogram(
            "time_to_first_token_seconds", "from the request to its first token", TTFT_BUCKETS
        )
        self.itl = self._histogram(
            "inter_token_latency_seconds", "between the tokens of one sample", ITL_BUCKETS
        )
        self.latency = self._histogram(
            "request_seconds", "from the request to the end of its answer", REQUEST_BUCKETS
        )
        self.prompt_len = self._histogram("request_prompt_tokens", "of a request", LENGTH_BUCKETS)
        self.output_len = self._histogram("request_output_tokens", "of a request", LENGTH_BUCKETS)
        self.phases = Phases(self._registry)
        self.finished = self._counter(
            "samples_finished", "samples that ran to their end", "finish_reason"
        )
        self.refused = self._counter("requests_refused", "turned away with 429", "key", "reason")
        self.requests = self._counter("requests", "requests for text", "key")
        self.key_prompt_tokens = self._counter("key_prompt_tokens", "asked for", "key")
        self.key_output_tokens = self._counter("key_output_tokens", "generated", "key")
        self.restarts = self._counter("engine_restarts", "times that a new engine was started")
        self.recent_ttft, self.recent_itl = RecentLatency(), RecentLatency()
        self._names = VllmNames(self, self._engine)
        self._registry.register(self._engine)
        self._registry.register(self._names)

    def name_model(self, model_name: str, block_size: int) -> None:
        """What is served, as labels say it."""
        self._names.name_model(model_name, block_size)

    def render(self, stats: Stats | None) -> bytes:
        """The exposition; `stats` None leaves the engine's figures out."""
        self._engine.latest = stats
        return generate_latest(self._registry)

    def count_refusal(self, key_name: str, reason: str) -> None:
        self.refused.labels(key_name, reason).inc()

    def count_request(self, who: Caller) -> None:
        """A request has ended, whichever way."""
        self.requests.labels(who.key.name).inc()
        self.key_prompt_tokens.labels(who.key.name).inc(who.num_prompt_tokens)
        self.key_output_tokens.labels(who.key.name).inc(who.num_output_tokens)
        if who.num_prompt_tokens:
            self.prompt_len.observe(who.num_prompt_tokens)
            self.output_len.observe(who.num_output_tokens)

    async def watch(
        self, deltas: AsyncGenerator[SampleDelta], who: Caller, request: AddRequest
    ) -> AsyncGenerator[SampleDelta]:
        """Pass deltas through, timing them, and keep for `who` what they come to."""
        begin_s = perf_counter()
        last_s: dict[int, float] = {}
        has_first_token = request.params.beam is None
        clock = RequestClock()
        who.num_prompt_tokens += len(request.prompt_token_ids)
        who.prompts.append(request.prompt_token_ids)
        with self._counting_refusals(who):
            async with aclosing(deltas):
                async for delta in deltas:
                    now_s = perf_counter()
                    if has_first_token:
                        self._observe_gap(delta, now_s, last_s, begin_s)
                    if delta.finish_reason is not None:
                        self.finished.labels(delta.finish_reason).inc()
                    who.note(delta, now_s - begin_s)
                    clock.note(delta, now_s - begin_s)
                    last_s[delta.sample_idx] = now_s
                    yield delta
        self.latency.observe(perf_counter() - begin_s)
        self.phases.count(clock, request.params)

    @contextmanager
    def _counting_refusals(self, who: Caller) -> Iterator[None]:
        try:
            yield
        except RequestRefusedError as error:
            if error.retry_after_s is not None:
                self.count_refusal(who.key.name, "overloaded")
            raise

    def _observe_gap(
        self, delta: SampleDelta, now_s: float, last_s: Mapping[int, float], begin_s: float
    ) -> None:
        gap_s = now_s - last_s.get(delta.sample_idx, begin_s)
        if delta.sample_idx not in last_s:
            self.ttft.observe(gap_s)
            self.recent_ttft.note(now_s, gap_s)
        elif delta.num_tokens:
            self.recent_itl.note(now_s, gap_s / delta.num_tokens)
            for _ in range(delta.num_tokens):
                self.itl.observe(gap_s / delta.num_tokens)

    def latencies(self) -> dict[str, dict[str, float | None]]:
        """Percentiles of the last minute, in seconds."""
        now_s = perf_counter()
        return {
            "ttft": self.recent_ttft.quantiles(now_s),
            "itl": self.recent_itl.quantiles(now_s),
        }

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"hasten_{name}", text, buckets=buckets, registry=self._registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"hasten_{name}", text, labels, registry=self._registry)
