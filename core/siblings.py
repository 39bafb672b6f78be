"""Samples of one request: the first computes their prompt, the others wait to fork it.

A group is kept here until its prompt is computed. Should the sample that computes it end before,
the next one takes its place. Exercised by `pytest tests/unit/core/test_scheduler.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hasten.core.request import Request


@dataclass(slots=True, eq=False)
class _Group:
    leader: Request
    followers: list[Request] = field(default_factory=list)


class Siblings:
    """The groups whose prompt is not computed yet, by `group_id`."""

    def __init__(self) -> None:
        self._groups: dict[str, _Group] = {}

    def __bool__(self) -> bool:
        return bool(self._groups)

    @property
    def followers(self) -> list[Request]:
        """All who wait for a sibling."""
        return [request for group in self._groups.values() for request in group.followers]

    def add(self, request: Request) -> bool:
        """Whether `request` may line up itself; otherwise it waits here."""
        if request.params.n == 1:
            return True
        group = self._groups.get(request.group_id)
        if group is None:
            self._groups[request.group_id] = _Group(request)
            return True
        group.followers.append(request)
        return False

    def release(self, request: Request) -> list[Request]:
        """`request` has computed its prompt: those who waited for that may line up."""
        group = self._groups.get(request.group_id)
        if group is None or group.leader is not request:
            return []
        return self._groups.pop(request.group_id).followers

    def remove(self, request: Request) -> Request | None:
        """`request` has ended, in whatever phase; returns who has to line up in its place."""
        group = self._groups.get(request.group_id)
        if group is None:
            return None
        if request in group.followers:
            group.followers.remove(request)
        elif group.leader is request and group.followers:
            group.leader = group.followers.pop(0)
            return group.leader
        elif group.leader is request:
            del self._groups[request.group_id]
        return None
