"""What exactly was measured: a configuration and its hash.

A record speaks of this configuration and of no other: weights, tokeniser, template, quantisation,
kernels, flags that can change results, versions, source, kind of machine. Two configurations are
the same if their parts are. Exercised by `pytest tests/evals/test_engine_configuration.py`.
"""

from __future__ import annotations

import hashlib
import platform
import sys
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, NewType

import msgspec
from hasten.evals.canonical import canonical_json

if TYPE_CHECKING:
    from collections.abc import Mapping

ConfigurationHash = NewType("ConfigurationHash", str)

SOURCE_ROOMS = ("core", "kernels", "quant", "spec", "api")
"""The rooms whose code can change what a model answers."""


class Configuration(msgspec.Struct, frozen=True):
    """`name` is for people; `parts` decide identity."""

    name: str
    parts: dict[str, str]

    @property
    def hash(self) -> ConfigurationHash:
        """Hexadecimal SHA-256 over the parts."""
        return ConfigurationHash(hashlib.sha256(canonical_json(self.parts)).hexdigest())

    def with_part(self, key: str, value: str) -> Configuration:
        return Configuration(self.name, {**self.parts, key: value})


def differences(one: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    """A line for each part that differs: "kernels: reference here, cpu there"."""
    absent = "(absent)"
    return [
        f"{key}: {one.get(key, absent)} here, {other.get(key, absent)} there"
        for key in sorted({*one, *other})
        if one.get(key) != other.get(key)
    ]


def environment_parts() -> dict[str, str]:
    """Parts that belong to the installation and the machine."""
    return {
        "hasten": metadata.version("hasten"),
        "source": source_hash(),
        "python": ".".join(map(str, sys.version_info[:2])),
        "torch": _version("torch"),
        "tokenizers": _version("tokenizers"),
        "device": f"{platform.system()} {platform.machine()}",
    }


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "(absent)"


@cache
def source_hash() -> str:
    """The first 16 digits of a SHA-256 over the code of the rooms that compute."""
    digest = hashlib.sha256()
    for path in _source_files():
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _source_files() -> list[Path]:
    from importlib import import_module

    found: list[Path] = []
    for room in SOURCE_ROOMS:
        try:
            package = import_module(f"hasten.{room}")
        except ModuleNotFoundError:
            continue
        for folder in package.__path__:
            found.extend(path for path in Path(folder).rglob("*") if path.suffix in {".py", ".so"})
    return sorted(set(found))


def file_hash(path: Path) -> str:
    """Hexadecimal SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
