"""Safetensors files: views without copies, several files, damage of any kind as one LoadError."""

from __future__ import annotations

import contextlib
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hasten.core.loading import LoadError
from hasten.core.loading.safetensors_files import SafetensorsSource, open_safetensors
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ml_dtypes import bfloat16
from safetensors.numpy import save_file

TENSORS: dict[str, Any] = {
    "a.weight": np.arange(12, dtype=np.float32).reshape(3, 4),
    "b.weight": np.arange(6, dtype=np.float16).reshape(2, 3),
    "c.weight": np.arange(5, dtype=np.float32).astype(bfloat16),
}


def write(folder: Path, tensors: dict[str, Any] | None = None, name: str = "model") -> Path:
    path = folder / f"{name}.safetensors"
    save_file(TENSORS if tensors is None else tensors, path)
    return path


def rewrite(path: Path, header: dict[str, Any] | bytes, body: bytes = b"\0" * 256) -> None:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + body)


def test_tensors_are_what_was_saved(tmp_path: Path) -> None:
    write(tmp_path)
    source = SafetensorsSource(open_safetensors(tmp_path))
    assert source.shapes() == {key: value.shape for key, value in TENSORS.items()}
    for key, value in TENSORS.items():
        data = source.read(key).data
        assert data.dtype == value.dtype
        assert np.array_equal(data, value)


def test_reading_makes_no_copy(tmp_path: Path) -> None:
    write(tmp_path)
    tensor = open_safetensors(tmp_path).tensors["a.weight"]
    assert np.shares_memory(tensor.array(), tensor.raw)


def test_an_unaligned_tensor_is_copied(tmp_path: Path) -> None:
    entry = {"dtype": "F32", "shape": [2], "data_offsets": [1, 9]}
    pad = {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}
    raw = json.dumps({"p": pad, "x": entry}).encode()
    raw += b" " * (-len(raw) % 8)
    rewrite(tmp_path / "model.safetensors", raw, b"\0" + np.array([1, 2], np.float32).tobytes())
    array = open_safetensors(tmp_path).tensors["x"].array()
    assert array.flags.aligned
    assert array.tolist() == [1.0, 2.0]


def sharded(folder: Path) -> Path:
    write(folder, {"a.weight": TENSORS["a.weight"]}, "model-00001-of-00002")
    write(folder, {"b.weight": TENSORS["b.weight"]}, "model-00002-of-00002")
    index = folder / "model.safetensors.index.json"
    files = {
        "a.weight": "model-00001-of-00002.safetensors",
        "b.weight": "model-00002-of-00002.safetensors",
    }
    index.write_text(json.dumps({"metadata": {"total_size": 60}, "weight_map": files}))
    return index


def test_several_files_are_one_checkpoint(tmp_path: Path) -> None:
    sharded(tmp_path)
    files = open_safetensors(tmp_path)
    assert set(files.tensors) == {"a.weight", "b.weight"}
    assert len(files.headers) == 2


@pytest.mark.parametrize(
    ("weight_map", "message"),
    [
        ({"z": "model-00001-of-00002.safetensors"}, "'z' is missing, though the index has it"),
        ({"a.weight": "gone.safetensors"}, r"gone\.safetensors: No such file"),
        ({"a.weight": "../model.safetensors"}, "not the name of a file beside it"),
        ({"a.weight": "/etc/passwd"}, "not the name of a file beside it"),
        ({"a.weight": 7}, "must be a string"),
        ([], "must be an object"),
    ],
)
def test_a_wrong_index_is_named(tmp_path: Path, weight_map: Any, message: str) -> None:
    index = sharded(tmp_path)
    index.write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(LoadError, match=message):
        open_safetensors(tmp_path)


def test_a_folder_without_weights(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"neither model\.safetensors nor"):
        open_safetensors(tmp_path)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"dtype": "F32", "shape": [4], "data_offsets": [0, 15]}, "do not fit shape"),
        ({"dtype": "F32", "shape": [-4], "data_offsets": [0, -16]}, "do not fit shape"),
        ({"dtype": "F32", "shape": [4], "data_offsets": [16, 0]}, "do not fit shape"),
        ({"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}, "truncated"),
        ({"dtype": "F4", "shape": [4], "data_offsets": [0, 16]}, "dtype 'F4'"),
        ({"dtype": "F32", "shape": 4.5, "data_offsets": [0, 16]}, "must be an integer or"),
        ({"dtype": "F32", "shape": [4]}, "field 'data_offsets' is missing"),
        ([1], "no entry of the expected form"),
    ],
)
def test_a_wrong_entry_is_named(tmp_path: Path, entry: Any, message: str) -> None:
    rewrite(tmp_path / "model.safetensors", {"x": entry})
    with pytest.raises(LoadError, match=message) as caught:
        open_safetensors(tmp_path)
    assert "model.safetensors" in str(caught.value)


def test_overlapping_tensors_are_refused(tmp_path: Path) -> None:
    one = {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}
    two = {"dtype": "F32", "shape": [4], "data_offsets": [8, 24]}
    rewrite(tmp_path / "model.safetensors", {"x": one, "y": two})
    with pytest.raises(LoadError, match="'y' overlaps another"):
        open_safetensors(tmp_path)


@pytest.mark.parametrize("header", [b"{", b"[]", b"\xff\xfe", b"[" * 100_000])
def test_a_header_that_is_no_object(tmp_path: Path, header: bytes) -> None:
    rewrite(tmp_path / "model.safetensors", header)
    with pytest.raises(LoadError, match="header is not"):
        open_safetensors(tmp_path)


def test_cut_anywhere_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path)
    content = path.read_bytes()
    for length in range(0, len(content), 5):
        path.write_bytes(content[:length])
        with pytest.raises(LoadError, match=r"model\.safetensors"):
            open_safetensors(tmp_path)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_flipped_header_bytes_load_or_are_one_error(tmp_path: Path, data: st.DataObject) -> None:
    path = write(tmp_path)
    damaged = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(damaged) - 1))
        damaged[at] = data.draw(st.integers(0, 255))
    path.write_bytes(damaged)
    with contextlib.suppress(LoadError):
        for tensor in open_safetensors(tmp_path).tensors.values():
            tensor.array()


def test_integers_are_no_plain_weights(tmp_path: Path) -> None:
    write(tmp_path, {"q": np.zeros((2, 2), np.int32)})
    with pytest.raises(LoadError, match="'q' has dtype I32"):
        SafetensorsSource(open_safetensors(tmp_path)).read("q")
