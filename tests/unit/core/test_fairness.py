"""Deficit round robin: who of several clients comes next, and who has to make room."""

from __future__ import annotations

from collections import Counter

from hasten.core.fairness import QUANTUM, FairBetweenClients
from hasten.core.policy import WaitingQueue
from hasten.core.request import Request
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.core.simulation import make_request


def ask(client: str, arrival: int, num_prompt_tokens: int = 100) -> Request:
    request = make_request(f"{client}{arrival}", (1,) * num_prompt_tokens, 28, arrival)
    request.client = client
    return request


def served(queue: WaitingQueue, count: int) -> list[str]:
    names = []
    for _ in range(count):
        head = queue.head()
        assert head is not None
        queue.remove(head)
        names.append(head.client)
    return names


def test_one_request_does_not_wait_for_a_thousand_of_another() -> None:
    queue = WaitingQueue(FairBetweenClients())
    for arrival in range(1000):
        queue.push(ask("many", arrival))
    assert served(queue, 5) == ["many"] * 5
    queue.push(ask("one", 1000))
    assert "one" in served(queue, 3)


def test_shares_count_tokens_and_not_requests() -> None:
    queue = WaitingQueue(FairBetweenClients())
    for arrival in range(200):
        queue.push(ask("long", arrival, num_prompt_tokens=996))
        queue.push(ask("short", arrival, num_prompt_tokens=100))
    names = Counter(served(queue, 180))
    tokens = {"long": names["long"] * 1024, "short": names["short"] * 128}
    assert abs(tokens["long"] - tokens["short"]) <= 1024 + 128 + QUANTUM


def test_who_comes_back_at_once_starves_nobody() -> None:
    queue = WaitingQueue(FairBetweenClients())
    for arrival in range(8):
        queue.push(ask("patient", arrival))
    queue.push(ask("a", 8))
    queue.push(ask("b", 9))
    names = []
    for arrival in range(10, 60):
        (name,) = served(queue, 1)
        names.append(name)
        if name != "patient":
            queue.push(ask(name, arrival))
    assert names.count("patient") == 8


def test_the_longest_queue_ends_the_queue() -> None:
    queue = WaitingQueue(FairBetweenClients())
    for arrival in range(50):
        queue.push(ask("many", arrival))
    queue.push(ask("few", 50))
    assert next(queue.last_first()).client == "many"


def test_the_preempted_come_back_first() -> None:
    queue = WaitingQueue(FairBetweenClients())
    queue.push(ask("a", 1))
    back = ask("b", 2)
    back.num_preemptions = 1
    queue.push(back)
    assert served(queue, 2) == ["b", "a"]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 3000)), max_size=60), st.data())
def test_everybody_comes_once_and_clients_in_their_order(
    asked: list[tuple[str, int]], data: st.DataObject
) -> None:
    policy = FairBetweenClients()
    queue = WaitingQueue(policy)
    waiting = [ask(client, i, size) for i, (client, size) in enumerate(asked)]
    for request in waiting:
        queue.push(request)
        if data.draw(st.booleans()):
            gone = data.draw(st.sampled_from(list(queue)))
            queue.remove(gone)
    left = list(queue)
    for client in "abc":
        arrivals = [request.arrival for request in left if request.client == client]
        assert arrivals == sorted(arrivals)
    served(queue, len(left))
    assert not policy._clients
