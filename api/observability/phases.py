"""Where the time of requests goes: waiting, the prompt, decoding; and what they ask for.

A request's times are those of its first sample to come and of its last, and are counted when it has
ended. A beam search answers all at once, at the end, so nobody sees when its first token came: it
has no time of prefill or of decoding.

Reads no clock. Exercised by `pytest tests/unit/api/test_observability.py`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Histogram

if TYPE_CHECKING:
    from hasten.api.text.sample_text import SampleDelta
    from hasten.core.params import GenerationParams

PHASE_BUCKETS = (0.001, 0.01, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
TOKEN_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
LENGTH_BUCKETS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000)
COUNT_BUCKETS = (1, 2, 5, 10, 20, 50, 100)


@dataclass(slots=True)
class RequestClock:
    """What has been seen of one request, in seconds since it began."""

    queue_s: float = 0.0
    first_s: float | None = None
    last_s: float = 0.0
    num_tokens: Counter[int] = field(default_factory=Counter)  # by sample

    def note(self, delta: SampleDelta, at_s: float) -> None:
        """A step has given something."""
        if self.first_s is None:
            self.first_s = at_s
            self.queue_s = delta.queue_s or 0.0
        self.last_s = at_s
        self.num_tokens[delta.sample_idx] += delta.num_tokens


class Phases:
    """Histograms by the names that they have in vLLM; ours say `hasten_` for `vllm:`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        texts = {
            "request_queue_time_seconds": ("until it was let in", PHASE_BUCKETS),
            "request_prefill_time_seconds": ("from then to the first token", PHASE_BUCKETS),
            "request_decode_time_seconds": ("from the first token to the last", PHASE_BUCKETS),
            "request_inference_time_seconds": ("prefill and decoding", PHASE_BUCKETS),
            "request_time_per_output_token_seconds": ("decoding, by token", TOKEN_BUCKETS),
            "request_max_num_generation_tokens": ("of its longest sample", LENGTH_BUCKETS),
            "request_params_max_tokens": ("asked for at most", LENGTH_BUCKETS),
            "request_params_n": ("samples asked for", COUNT_BUCKETS),
        }
        self.by_name = {
            name: Histogram(f"hasten_{name}", text, buckets=buckets, registry=registry)
            for name, (text, buckets) in texts.items()
        }

    def count(self, clock: RequestClock, params: GenerationParams) -> None:
        """A request has been answered."""
        if clock.first_s is None:
            return
        most = max(clock.num_tokens.values())
        values = {
            "request_queue_time_seconds": clock.queue_s,
            "request_inference_time_seconds": max(0.0, clock.last_s - clock.queue_s),
            "request_max_num_generation_tokens": most,
            "request_params_max_tokens": params.max_tokens,
            "request_params_n": params.n,
        }
        if params.beam is None:
            decode_s = clock.last_s - clock.first_s
            values["request_prefill_time_seconds"] = max(0.0, clock.first_s - clock.queue_s)
            values["request_decode_time_seconds"] = decode_s
            if most > 1:
                values["request_time_per_output_token_seconds"] = decode_s / (most - 1)
        for name, value in values.items():
            self.by_name[name].observe(value)
