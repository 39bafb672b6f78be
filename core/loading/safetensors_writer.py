"""Writing checkpoint files: safetensors with an index, each file written whole or not at all.

Exercised by `pytest tests/unit/loading/test_safetensors_writer.py`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from hasten.core.loading.safetensors_files import DTYPES, INDEX_FILE

_NAMES = {np.dtype(dtype): name for name, dtype in DTYPES.items()}


def write_safetensors(path: Path, tensors: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write tensors to `path`, through a file beside it that takes its place when complete.

    Wide types come first, so that every tensor is aligned to its type.
    """
    ordered = sorted(tensors.items(), key=lambda entry: (-entry[1].dtype.itemsize, entry[0]))
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in ordered:
        begin, end = end, end + tensor.nbytes
        header[name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
    raw = json.dumps(header).encode()
    raw += b" " * (-len(raw) % 8)
    partial = _beside(path)
    with partial.open("wb") as file:
        file.write(len(raw).to_bytes(8, "little") + raw)
        for _, tensor in ordered:
            file.write(np.ascontiguousarray(tensor).reshape(-1).view(np.uint8).data)
    partial.replace(path)


def write_index(folder: Path, files: Mapping[str, Mapping[str, npt.NDArray[Any]]]) -> None:
    """Write the index of the tensors that each of `files` in `folder` holds."""
    weight_map = {name: file for file, tensors in files.items() for name in tensors}
    total = sum(tensor.nbytes for tensors in files.values() for tensor in tensors.values())
    write_json(folder / INDEX_FILE, {"metadata": {"total_size": total}, "weight_map": weight_map})


def write_json(path: Path, value: Any) -> None:
    """Write JSON to `path`, whole or not at all."""
    partial = _beside(path)
    partial.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
    partial.replace(path)


def _beside(path: Path) -> Path:
    return path.with_name(path.name + ".partial")
