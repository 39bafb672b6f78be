"""Serving: text handling, the HTTP server, the command line, and models for Python programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hasten.api.llm import LLM, AsyncLLM
    from hasten.api.params import SamplingParams
    from hasten.core.params import Beam

__all__ = ["LLM", "AsyncLLM", "Beam", "SamplingParams"]


def __getattr__(name: str) -> Any:
    """Import what is asked for: the engine process, which lives here too, needs none of it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "SamplingParams":
        from hasten.api.params import SamplingParams

        return SamplingParams
    if name == "Beam":
        from hasten.core.params import Beam

        return Beam
    from hasten.api import llm

    return getattr(llm, name)
