"""An engine with all that `core` leaves to whoever builds one: speculation.

Exercised by `pytest tests/cpu/spec/test_build.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hasten.core import build
from hasten.spec import make_speculator

if TYPE_CHECKING:
    from hasten.core.engine import Engine
    from hasten.core.options import EngineOptions


def build_engine(options: EngineOptions) -> Engine:
    """The engine that `options` ask for. Raises what `core.build.build_engine` raises."""
    return build.build_engine(options, make_speculator=make_speculator)
