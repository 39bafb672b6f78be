"""Checkpoint files that others read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
from hasten.core.loading.safetensors_files import open_safetensors
from hasten.core.loading.safetensors_writer import write_index, write_safetensors
from safetensors import safe_open

TENSORS: dict[str, npt.NDArray[Any]] = {
    "a": np.arange(6, dtype=np.int32).reshape(2, 3),
    "b": np.arange(5).astype(ml_dtypes.float8_e4m3fn),
    "c": np.arange(3).astype(ml_dtypes.bfloat16),
    "d": np.asfortranarray(np.arange(6, dtype=np.float16).reshape(2, 3)),
    "e": np.array([4, 8], np.int64),
}


def test_what_was_written_is_read(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "model.safetensors", TENSORS)
    read = open_safetensors(tmp_path).tensors
    for name, tensor in TENSORS.items():
        array = read[name].array()
        assert np.shares_memory(array, read[name].raw), f"{name} is not aligned"
        assert array.dtype == tensor.dtype
        np.testing.assert_array_equal(array, tensor)
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]


def test_the_formats_own_reader_agrees(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "model.safetensors", TENSORS)
    with safe_open(tmp_path / "model.safetensors", "numpy") as file:
        assert file.metadata() == {"format": "pt"}
        for name in ("a", "d", "e"):
            np.testing.assert_array_equal(file.get_tensor(name), TENSORS[name])


def test_an_index_joins_files(tmp_path: Path) -> None:
    parts = {"x.safetensors": {"a": TENSORS["a"]}, "y.safetensors": {"b": TENSORS["b"]}}
    for name, tensors in parts.items():
        write_safetensors(tmp_path / name, tensors)
    write_index(tmp_path, parts)
    assert set(open_safetensors(tmp_path).tensors) == {"a", "b"}
