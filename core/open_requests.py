"""The requests that clients wait for: each is one sample or several, which end on their own.

    request "a"   samples "a/0", "a/1"     ids of the scheduler: one per sample
    request "b"   sample  "b/0"

A request is open from its arrival until the last of its samples has ended. Pure bookkeeping.
Exercised by `pytest tests/unit/core/test_engine.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hasten.core.request import RequestId
    from hasten.core.samples import Sample


class OpenRequests:
    """By the client's id (`group_id`) and, in `samples`, by the scheduler's ids."""

    def __init__(self) -> None:
        self.samples: dict[RequestId, Sample] = {}
        self._by_group: dict[str, dict[RequestId, Sample]] = {}

    def __contains__(self, group_id: str) -> bool:
        return group_id in self._by_group

    @property
    def group_ids(self) -> list[str]:
        """In the order of arrival."""
        return list(self._by_group)

    def samples_of(self, group_id: str) -> list[Sample]:
        """The samples of a request that have not ended; none of one that is not open."""
        return list(self._by_group.get(group_id, {}).values())

    def open(self, sample: Sample) -> None:
        """A client waits for this sample from now on."""
        self.samples[sample.request_id] = sample
        self._by_group.setdefault(sample.request.group_id, {})[sample.request_id] = sample

    def close(self, sample: Sample) -> None:
        """The client no longer waits for this sample; the last one takes its request along."""
        group_id = sample.request.group_id
        del self.samples[sample.request_id]
        siblings = self._by_group[group_id]
        del siblings[sample.request_id]
        if not siblings:
            del self._by_group[group_id]
