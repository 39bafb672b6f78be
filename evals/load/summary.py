"""What a load run amounts to: latencies at percentiles, throughput, goodput.

Definitions (see docs/glossary.md): TTFT from sending to the first text; ITL per token; TPOT =
decode time / (tokens - 1), per request; end to end from sending to the end of the stream; goodput
= requests per second that met every target given. Exercised by `pytest tests/unit/load`.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from hasten.evals.load.client import RequestRecord, token_gaps
from hasten.evals.load.run import LoadRun


class Percentiles(msgspec.Struct, frozen=True):
    """Milliseconds."""

    mean: float
    p50: float
    p90: float
    p99: float
    max: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Percentiles:
        """NaN throughout when there is nothing to summarise."""
        if not seconds:
            return cls(*[float("nan")] * 5)
        values = np.asarray(seconds) * 1e3
        p50, p90, p99 = np.percentile(values, (50, 90, 99)).tolist()
        return cls(float(values.mean()), p50, p90, p99, float(values.max()))


class Targets(msgspec.Struct, frozen=True):
    """Latency targets in milliseconds that a request must meet to count as good."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2e_ms: float | None = None

    def met_by(self, record: RequestRecord) -> bool:
        tpot_s = record.tpot_s
        return (
            (self.ttft_ms is None or record.ttft_s * 1e3 <= self.ttft_ms)
            and (self.tpot_ms is None or tpot_s is None or tpot_s * 1e3 <= self.tpot_ms)
            and (self.e2e_ms is None or record.e2e_s * 1e3 <= self.e2e_ms)
        )


class LoadSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one run; `schema` names this layout."""

    schema: str = "hasten.load/1"
    workload: str
    num_ok: int
    num_failed: int
    errors: list[str]
    duration_s: float
    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int
    output_tokens_per_s: float
    requests_per_s: float
    goodput_per_s: float
    targets: Targets
    ttft_ms: Percentiles
    itl_ms: Percentiles
    tpot_ms: Percentiles
    e2e_ms: Percentiles
    send_lag_ms: Percentiles
    client_stall_p99_ms: float


def summarise(run: LoadRun, targets: Targets) -> LoadSummary:
    """All figures of a run."""
    good = [record for record in run.records if record.ok]
    failed = [record.error or "" for record in run.records if not record.ok]
    num_output = sum(record.num_output_tokens for record in good)
    return LoadSummary(
        workload=run.workload.name,
        num_ok=len(good),
        num_failed=len(failed),
        errors=sorted(set(failed))[:5],
        duration_s=run.duration_s,
        num_prompt_tokens=sum(record.num_prompt_tokens for record in good),
        num_cached_tokens=sum(record.num_cached_tokens for record in good),
        num_output_tokens=num_output,
        output_tokens_per_s=num_output / run.duration_s,
        requests_per_s=len(good) / run.duration_s,
        goodput_per_s=sum(map(targets.met_by, good)) / run.duration_s,
        targets=targets,
        ttft_ms=Percentiles.of([record.ttft_s for record in good]),
        itl_ms=Percentiles.of([gap for record in good for gap in token_gaps(record)]),
        tpot_ms=Percentiles.of([tpot for r in good if (tpot := r.tpot_s) is not None]),
        e2e_ms=Percentiles.of([record.e2e_s for record in good]),
        send_lag_ms=Percentiles.of([r.sent_s - r.scheduled_s for r in run.records]),
        client_stall_p99_ms=run.stall_p99_s * 1e3,
    )
