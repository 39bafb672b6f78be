"""Spans of requests, as a tracer gets them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hasten.api.observability.tracing import RequestTraces
from hasten.api.security.caller import Caller
from hasten.api.security.keys import Key

trace = pytest.importorskip("opentelemetry.trace", reason="OpenTelemetry is not installed")
TRACE_ID = 0x0AF7651916CD43DD8448EB211C80319C
PARENT = f"00-{TRACE_ID:032x}-b7ad6b7169203331-01"


class Recorder:
    """A tracer, and the one span that it makes."""

    def __init__(self) -> None:
        self.made: dict[str, Any] = {}

    def start_span(self, name: str, **made: Any) -> Recorder:
        self.made = {"name": name, **made}
        return self

    def add_event(self, name: str, timestamp: int) -> None:
        self.made["event"] = name, timestamp

    def end(self, end_time: int) -> None:
        self.made["end"] = end_time


def record(who: Caller) -> Mapping[str, Any]:
    recorder = Recorder()
    RequestTraces(recorder).write(who, "tiny")  # type: ignore[arg-type]  # as much of a tracer as is used
    return recorder.made


def test_a_request_is_a_span_below_its_callers() -> None:
    who = Caller(Key("alice"), trace_parent=PARENT, num_prompt_tokens=7, num_output_tokens=3)
    who.ttft_s, who.finish_reason = 0.5, "stop"
    span = record(who)
    assert trace.get_current_span(span["context"]).get_span_context().trace_id == TRACE_ID
    assert span["attributes"]["gen_ai.usage.input_tokens"] == 7
    reasons: Sequence[str] = span["attributes"]["gen_ai.response.finish_reasons"]
    assert reasons == ["stop"]
    assert span["event"] == ("first token", span["start_time"] + 500_000_000)
    assert span["end"] >= span["start_time"]


@pytest.mark.parametrize("header", [None, "", "nonsense", "00-0-0-00"])
def test_without_a_parent_it_is_a_root(header: str | None) -> None:
    span = record(Caller(trace_parent=header))
    context = trace.get_current_span(span["context"]).get_span_context()
    assert not context.is_valid
    assert "event" not in span
