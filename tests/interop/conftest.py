"""Tests against the quantising tools themselves: `make interop`.

HASTEN_INTEROP names the folder of the tools' environments; missing ones are made, from PyPI, which
takes minutes and gigabytes; what cannot be made fails. Without the variable all of this is skipped.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hasten.core.quantize.tools import TOOLS, ToolEnvironment

FOLDER = os.environ.get("HASTEN_INTEROP")


@pytest.fixture(scope="session")
def environment_of() -> Callable[[str], ToolEnvironment]:
    """The environment of a tool of `TOOLS`, made if need be; skips where no folder is named."""

    def ensure(name: str) -> ToolEnvironment:
        if FOLDER is None:
            pytest.skip("HASTEN_INTEROP names no folder for the tools' environments")
        environment = ToolEnvironment.locate(TOOLS[name], Path(FOLDER).absolute() / name)
        environment.ensure(print)
        return environment

    return ensure
