"""A span for each request, below its caller's, where OpenTelemetry is installed.

Only OpenTelemetry's interface is used here; what becomes of spans is its own configuration:

    pip install 'hasten[tracing]'
    OTEL_EXPORTER_OTLP_ENDPOINT=http://collector:4318 opentelemetry-instrument hasten serve

Without that the interface does nothing, and costs nothing. The names of attributes are those of
OpenTelemetry's semantic conventions for generative AI. Exercised by
`pytest tests/unit/api/test_tracing.py`.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hasten.api.security.caller import Caller
    from opentelemetry.trace import Tracer

NS = 1_000_000_000


def installed_tracer() -> Tracer | None:
    """The tracer that OpenTelemetry was configured with; None where it is not installed."""
    try:
        from opentelemetry.trace import get_tracer
    except ImportError:
        return None
    return get_tracer("hasten")


class RequestTraces:
    """Writes the spans of one server, when its requests have ended."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def write(self, who: Caller, model_name: str) -> None:
        """`who` has got an answer, or an error, or has gone."""
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        end_ns = time.time_ns()
        begin_ns = end_ns - int((time.monotonic() - who.begin_s) * NS)
        carrier = {"traceparent": who.trace_parent} if who.trace_parent else {}
        span = self._tracer.start_span(
            f"text_completion {model_name}",
            context=TraceContextTextMapPropagator().extract(carrier),
            kind=SpanKind.SERVER,
            attributes={
                "gen_ai.request.model": model_name,
                "gen_ai.usage.input_tokens": who.num_prompt_tokens,
                "gen_ai.usage.output_tokens": who.num_output_tokens,
                "gen_ai.response.finish_reasons": [who.finish_reason or "none"],
                "hasten.key": who.key.name,
            },
            start_time=begin_ns,
        )
        if who.ttft_s is not None:
            span.add_event("first token", timestamp=begin_ns + int(who.ttft_s * NS))
        span.end(end_ns)
