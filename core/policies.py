"""The queue policies by the names that `--scheduling-policy` gives them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hasten.core.fairness import FairBetweenClients
from hasten.core.policy import FirstComeFirstServed, PriorityFirst

if TYPE_CHECKING:
    from hasten.core.policy import QueuePolicy

POLICIES: dict[str, type[QueuePolicy]] = {
    "fcfs": FirstComeFirstServed,
    "priority": PriorityFirst,
    "fair": FairBetweenClients,
}


def queue_policy(name: str) -> QueuePolicy:
    """The policy called `name`. Raises ValueError for another name."""
    if name not in POLICIES:
        raise ValueError(f"unknown scheduling policy {name!r}; there are: {', '.join(POLICIES)}")
    return POLICIES[name]()
