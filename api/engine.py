"""An engine with all that `core` leaves to whoever builds one: speculation, structured output.

Exercised by `pytest tests/cpu/spec/test_build.py tests/cpu/structured`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hasten.api.draft_vocabulary import check_draft_vocabulary
from hasten.api.structured.build import make_grammars
from hasten.core import build
from hasten.spec import make_speculator

if TYPE_CHECKING:
    from hasten.core.engine import Engine
    from hasten.core.options import EngineOptions


def build_engine(options: EngineOptions) -> Engine:
    """The engine that `options` ask for. Raises what `core.build.build_engine` raises."""
    check_draft_vocabulary(options)
    return build.build_engine(options, make_speculator=make_speculator, make_grammars=make_grammars)
