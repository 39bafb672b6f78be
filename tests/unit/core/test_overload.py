"""Who is turned away when there is more to do than can be done, and when."""

from __future__ import annotations

import pytest
from hasten.core.deadlines import Deadlines
from hasten.core.engine import Engine
from hasten.core.latency import StepTimeModel
from hasten.core.messages import AddRequest, RequestRefused
from hasten.core.overload import Overload, QueueLimits
from hasten.core.params import GenerationParams
from hasten.core.wait import Pace, WaitForecast

from tests.helpers.engines import VOCAB_SIZE, EngineSize, finish_all, make_parts
from tests.helpers.mock_model import MockExecutor

SIZE = EngineSize(max_num_seqs=2, max_num_batched_tokens=32)
STEP_S, TOKEN_S = 0.01, 0.001


def step_times() -> StepTimeModel:
    """10 ms a step and 1 ms a token."""
    model = StepTimeModel()
    model.body.set(1, STEP_S + TOKEN_S)
    model.body.set(1001, STEP_S + 1001 * TOKEN_S)
    return model


def make_engine(limits: QueueLimits, size: EngineSize = SIZE) -> Engine:
    parts = make_parts(size, MockExecutor(size.kv_plan, VOCAB_SIZE))
    forecast = WaitForecast(
        parts.scheduler, step_times(), size.max_num_batched_tokens, Pace(prior=1.0)
    )
    parts.overload = Overload(parts.scheduler, limits, forecast)
    return Engine(parts)


def ask(
    name: str,
    *,
    priority: int = 0,
    client: str = "",
    deadline_s: float | None = None,
    num_prompt_tokens: int = 4,
    max_tokens: int = 8,
    n: int = 1,
) -> AddRequest:
    return AddRequest(
        request_id=name,
        prompt_token_ids=[1] * num_prompt_tokens,
        params=GenerationParams(max_tokens=max_tokens, seed=0, n=n),
        priority=priority,
        client=client,
        deadline_s=deadline_s,
    )


def refused(refusal: RequestRefused | None) -> RequestRefused:
    assert refusal is not None
    assert refusal.retry_after_s is not None
    assert refusal.retry_after_s >= 1
    return refusal


def test_the_last_to_come_is_turned_away_when_the_queue_is_full() -> None:
    engine = make_engine(QueueLimits(max_len=3))
    assert all(engine.add_request(ask(f"r{i}")) is None for i in range(3))
    refusal = refused(engine.add_request(ask("late")))
    assert refusal.request_id == "late"
    assert "3 requests wait" in refusal.message
    engine.step()  # two have come in
    assert engine.add_request(ask("next")) is None
    finish_all(engine, {})
    assert engine.stats().num_prompt_tokens == 4 * 4


def test_a_more_urgent_request_takes_the_place_of_the_least_urgent() -> None:
    size = EngineSize(max_num_seqs=2, max_num_batched_tokens=32, policy="priority")
    engine = make_engine(QueueLimits(max_len=2), size)
    assert engine.add_request(ask("idle", priority=5)) is None
    assert engine.add_request(ask("usual")) is None
    assert refused(engine.add_request(ask("urgent", priority=-1))).request_id == "idle"
    finish_all(engine, {})


def test_a_flood_of_one_client_turns_away_its_own() -> None:
    size = EngineSize(max_num_seqs=2, max_num_batched_tokens=32, policy="fair")
    engine = make_engine(QueueLimits(max_len=10), size)
    for i in range(10):
        assert engine.add_request(ask(f"flood{i}", client="flood")) is None
    assert refused(engine.add_request(ask("other", client="other"))).request_id == "flood9"
    assert refused(engine.add_request(ask("more", client="flood"))).request_id == "more"
    finish_all(engine, {})


def test_samples_of_one_request_count_once_and_go_together() -> None:
    engine = make_engine(QueueLimits(max_len=1))
    assert engine.add_request(ask("many", n=5)) is None
    assert refused(engine.add_request(ask("more", n=5))).request_id == "more"
    finish_all(engine, {})
    assert engine.stats().num_generated_tokens == 5 * 8


def test_the_predicted_wait_counts_prompts_and_outputs_ahead() -> None:
    engine = make_engine(QueueLimits(max_len=100))
    overload = engine._parts.overload
    assert overload is not None
    assert overload.predicted_wait_s() == pytest.approx(STEP_S + TOKEN_S)
    engine.add_request(ask("a", max_tokens=100))
    engine.step()
    one_runs = overload.predicted_wait_s()
    engine.add_request(ask("b", max_tokens=100))
    engine.step()
    all_seats = overload.predicted_wait_s()
    engine.add_request(ask("c", max_tokens=100, num_prompt_tokens=64))
    behind = overload.predicted_wait_s()
    assert one_runs < 2 * STEP_S
    # About 99 more steps of two tokens each, less the chance of an earlier end.
    assert 0.9 * 99 < all_seats / (STEP_S + 2 * TOKEN_S) < 101
    assert behind >= all_seats + 64 * TOKEN_S
    assert engine.stats().predicted_wait_s == behind
    finish_all(engine, {})


def test_the_queue_is_bounded_by_predicted_wait() -> None:
    engine = make_engine(QueueLimits(max_len=100, max_wait_s=1.0))
    for name in "ab":
        assert engine.add_request(ask(name, max_tokens=200)) is None
    engine.step()
    refusal = refused(engine.add_request(ask("c")))
    assert "--max-queue-wait-ms" in refusal.message
    finish_all(engine, {})
    assert engine.add_request(ask("c")) is None


def test_who_waits_longer_than_is_accepted_has_to_go_and_no_other() -> None:
    engine = make_engine(QueueLimits(max_len=100, max_wait_s=3.0))
    for name in ("one", "two", "late", "next"):
        assert engine.add_request(ask(name, max_tokens=50)) is None
    engine._longest_waits._deadlines["late"] = 0.0  # long ago
    ended = {output.request_id: output.finish_reason for output in engine.step()}
    assert ended == {"late": "overload", "one": None, "two": None}
    finish_all(engine, {})
    assert engine.stats().num_generated_tokens == 3 * 50
    assert not engine._longest_waits._deadlines


def test_waits_are_expected_to_be_off_as_they_were() -> None:
    pace = Pace()
    for _ in range(300):
        pace.learn(1.0, 1.5)
    assert pace.factor == pytest.approx(1.5, rel=0.01)
    for _ in range(1000):
        pace.learn(0.0, 0.01)  # nobody was ahead, but a step was under way
    assert pace.factor == pytest.approx(1.5, rel=0.01)
    for _ in range(300):
        pace.learn(2.0, 1.0)
    assert pace.factor == pytest.approx(0.5, rel=0.2)


def test_the_forecast_learns_from_whom_the_engine_lets_in() -> None:
    engine = make_engine(QueueLimits(max_len=100, max_wait_s=1000.0))
    overload = engine._parts.overload
    assert overload is not None
    overload.forecast.pace = Pace(prior=1.0)
    for i in range(12):
        assert engine.add_request(ask(str(i), max_tokens=20)) is None
    finish_all(engine, {})
    # Two at a time, in steps that are expected to take 12 ms and take nothing.
    assert overload.forecast.pace.factor < 0.8
    assert not overload._computed_s


def test_a_deadline_that_is_not_expected_to_be_met_is_refused_at_once() -> None:
    engine = make_engine(QueueLimits(max_len=100))
    for name in "ab":
        engine.add_request(ask(name, max_tokens=200))
    engine.step()
    assert "deadline_ms" in refused(engine.add_request(ask("c", deadline_s=0.5))).message
    assert engine.add_request(ask("d", deadline_s=60.0)) is None


def test_a_deadline_that_passes_ends_the_request_and_no_other() -> None:
    engine = make_engine(QueueLimits(max_len=100))
    engine.add_request(ask("late", deadline_s=0.02, max_tokens=200))
    engine.add_request(ask("other", max_tokens=200))
    engine._deadlines._deadlines["late"] = 0.0  # long ago
    ended = {output.request_id: output.finish_reason for output in engine.step()}
    assert ended == {"late": "deadline", "other": None}
    finish_all(engine, {})
    assert engine.stats().num_free_blocks == engine.stats().num_total_blocks


def test_deadlines_are_looked_at_when_they_are_due() -> None:
    asked: list[str] = []

    def least_s(request_id: str) -> float:
        asked.append(request_id)
        return 1.0

    deadlines = Deadlines()
    deadlines.add("a", 10.0)
    deadlines.add("b", 20.0)
    assert deadlines.late(1.0, least_s) == []
    assert sorted(asked) == ["a", "b"]
    assert deadlines.late(8.0, least_s) == []
    assert len(asked) == 2
    assert deadlines.late(9.0, least_s) == ["a"]
    deadlines.forget("b")
    assert deadlines.late(30.0, least_s) == []
    assert asked[2:] == ["a"]


def test_an_id_that_is_used_again_is_looked_at_once() -> None:
    engine = make_engine(QueueLimits(max_len=100))
    for _ in range(3):
        engine.abort(["late"])
        assert engine.add_request(ask("late", deadline_s=60.0, max_tokens=200)) is None
    engine._deadlines._deadlines["late"] = 0.0  # long ago
    assert [output.finish_reason for output in engine.step()] == ["deadline"]
    assert not engine.has_work
