"""What an engine is put together from: what it needs, and the optional features it may have.

Put together by `core.assembly`, and for tests from parts small enough to see through. Exercised by
`pytest tests/unit/core/test_engine.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from hasten.core.blocks import BlockManager
    from hasten.core.messages import EngineReady
    from hasten.core.overload import Overload
    from hasten.core.pooling import Pooler
    from hasten.core.protocols import Executor, Grammars, Speculator, StepObserver
    from hasten.core.scheduler import Scheduler
    from hasten.core.validation import ModelLimits
    from hasten.kernels.program import Capacity


@dataclass(slots=True)
class EngineParts:
    """Whoever has none of a feature leaves it None.

    By `busy_clock` runs the time that the executor works, as far as that can be told from the time
    that passes.
    """

    scheduler: Scheduler
    blocks: BlockManager
    executor: Executor
    capacity: Capacity
    limits: ModelLimits
    ready: EngineReady
    observer: StepObserver | None = None
    busy_clock: Callable[[], float] = perf_counter
    speculator: Speculator | None = None
    grammars: Grammars | None = None
    overload: Overload | None = None
    pooler: Pooler | None = None
