"""`msgspec`, as far as the engine needs it, from the standard library.

A machine with a GPU to borrow may have torch, triton and numpy and nothing else of what Hasten
installs; the engine's messages are msgspec structs. `install` puts a stand-in where there is none.
"""

from __future__ import annotations

import dataclasses
import importlib
import sys
from types import ModuleType
from typing import Any, dataclass_transform

STRUCT_OPTIONS = ("frozen", "kw_only")


@dataclass_transform(field_specifiers=(dataclasses.field,))
class Struct:
    """A dataclass with the class arguments of `msgspec.Struct`."""

    def __init_subclass__(cls, **options: Any) -> None:
        for name in vars(cls).get("__annotations__", {}):
            default = vars(cls).get(name)
            if isinstance(default, list | dict | set):  # msgspec copies empty ones
                setattr(cls, name, dataclasses.field(default_factory=type(default)))
        kept = {name: options.get(name, False) for name in STRUCT_OPTIONS}
        dataclasses.dataclass(**kept)(cls)


def install() -> list[str]:
    """Stand in for what is missing; returns its names."""
    try:
        importlib.import_module("msgspec")
    except ImportError:
        _stand_in_for_msgspec()
        return ["msgspec"]
    return []


def _stand_in_for_msgspec() -> None:
    module = ModuleType("msgspec")
    structs = ModuleType("msgspec.structs")
    module.__dict__.update(Struct=Struct, field=dataclasses.field, structs=structs)
    structs.__dict__.update(replace=dataclasses.replace)
    sys.modules.update({"msgspec": module, "msgspec.structs": structs})
