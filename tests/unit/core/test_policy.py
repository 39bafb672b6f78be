"""Queue order, levels, and names of policies."""

from __future__ import annotations

import pytest
from hasten.core.policies import queue_policy
from hasten.core.policy import FirstComeFirstServed, PriorityFirst, WaitingQueue
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.core.simulation import make_request

ARRIVALS = st.lists(
    st.tuples(st.integers(-2, 2), st.integers(0, 20)), unique_by=lambda pair: pair[1]
)


@given(ARRIVALS)
def test_first_come_first_served(arrivals: list[tuple[int, int]]) -> None:
    queue = WaitingQueue(FirstComeFirstServed())
    for priority, arrival in arrivals:
        queue.push(make_request(str(arrival), (1,), arrival=arrival, priority=priority))
    assert [request.arrival for request in queue] == sorted(arrival for _, arrival in arrivals)


@given(ARRIVALS)
def test_lower_priority_numbers_go_first(arrivals: list[tuple[int, int]]) -> None:
    queue = WaitingQueue(PriorityFirst())
    for priority, arrival in arrivals:
        queue.push(make_request(str(arrival), (1,), arrival=arrival, priority=priority))
    assert [(request.priority, request.arrival) for request in queue] == sorted(arrivals)


@given(ARRIVALS, st.data())
def test_anybody_can_leave(arrivals: list[tuple[int, int]], data: st.DataObject) -> None:
    queue = WaitingQueue(PriorityFirst())
    waiting = [make_request(str(a), (1,), arrival=a, priority=p) for p, a in arrivals]
    for request in waiting:
        queue.push(request)
    while waiting:
        gone = data.draw(st.sampled_from(waiting))
        waiting.remove(gone)
        queue.remove(gone)
        assert gone not in queue
        assert sorted(r.arrival for r in queue) == sorted(r.arrival for r in waiting)
    assert queue.head() is None


def test_nobody_waits_twice() -> None:
    queue = WaitingQueue(FirstComeFirstServed())
    request = make_request("a", (1,))
    queue.push(request)
    with pytest.raises(ValueError, match="waits already"):
        queue.push(request)


def test_samples_line_up_by_index() -> None:
    queue = WaitingQueue(FirstComeFirstServed())
    for sample_idx in (10, 2, 0):
        queue.push(make_request("a", (1,), n=16, sample_idx=sample_idx))
    assert [request.sample_idx for request in queue] == [0, 2, 10]


def test_policies_have_names() -> None:
    assert isinstance(queue_policy("fcfs"), FirstComeFirstServed)
    assert isinstance(queue_policy("priority"), PriorityFirst)
    with pytest.raises(ValueError, match="there are: fcfs, priority"):
        queue_policy("lottery")
    assert PriorityFirst().level(make_request("a", (1,), priority=3)) == 3
    assert FirstComeFirstServed().level(make_request("a", (1,), priority=3)) == 0
