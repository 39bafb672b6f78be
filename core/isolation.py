"""Which requests of a step cannot be computed, so that the others go on.

A backend that meets logits it cannot choose from (NaN, every token forbidden) raises
FloatingPointError, for the whole step. Steps are repeatable: they write the same K and V into the
same slots again. So each request's part is computed alone, and those that fail alone are at fault.

Exercised by `pytest tests/unit/core/test_isolation.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

if TYPE_CHECKING:
    from collections.abc import Callable

    from hasten.core.plan import StepPlan
    from hasten.core.request import RequestId


def at_fault(plan: StepPlan, compute: Callable[[StepPlan], object]) -> frozenset[RequestId]:
    """The requests whose part of `plan` raises FloatingPointError in `compute`."""
    found = set()
    for planned in plan.requests:
        try:
            compute(replace(plan, requests=(planned,)))
        except FloatingPointError:
            found.add(planned.request_id)
    return frozenset(found)


def without(plan: StepPlan, request_ids: frozenset[RequestId]) -> StepPlan:
    """What is left of a plan."""
    kept = tuple(planned for planned in plan.requests if planned.request_id not in request_ids)
    return replace(plan, requests=kept)
