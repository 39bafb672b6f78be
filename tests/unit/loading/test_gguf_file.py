"""The GGUF container: what is read, and that damage of any kind is one LoadError."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from hasten.core.loading import LoadError
from hasten.core.loading.gguf_file import open_gguf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.helpers.gguf_files import TinyGGUF, as_mapping, write_gguf


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    write_gguf(path)
    return path.read_bytes()


def test_metadata_is_what_the_gguf_package_reads(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    values = {"x.flag": True, "x.list": [1, 2, 3], "x.reals": [0.5, 1.5], "x.text": "ünï"}
    write_gguf(path, TinyGGUF(metadata=values))
    ours = open_gguf(path).metadata
    theirs = {key: value for key, value in as_mapping(path).items() if "GGUF." not in key}
    assert ours == theirs
    assert ours["x.flag"] is True


def test_tensors_are_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    expected = write_gguf(path, TinyGGUF(family="qwen2"))
    tensors = open_gguf(path).tensors
    assert tensors.keys() == expected.keys()
    for name, values in expected.items():
        assert tensors[name].shape == values.shape
        assert np.array_equal(tensors[name].raw.view(np.float32).reshape(values.shape), values)


def test_writing_to_a_view_does_not_touch_the_file(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(path)
    before = path.read_bytes()
    open_gguf(path).tensors["output_norm.weight"].raw[:] = 0
    assert path.read_bytes() == before


def test_cut_anywhere_is_an_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "cut.gguf"
    lengths = {*range(0, 4000, 37), len(content) // 2, len(content) - 33, len(content) - 100}
    for length in lengths:
        path.write_bytes(content[:length])
        with pytest.raises(LoadError, match=r"cut\.gguf"):
            open_gguf(path)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_flipped_header_bytes_load_or_are_one_error(
    tmp_path: Path, content: bytes, data: st.DataObject
) -> None:
    damaged = bytearray(content)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, 5000))] = data.draw(st.integers(0, 255))
    path = tmp_path / "flipped.gguf"
    path.write_bytes(damaged)
    try:
        open_gguf(path)
    except LoadError as error:
        assert "flipped.gguf" in str(error)  # noqa: PT017  either outcome is right
        assert "\n" not in str(error)  # noqa: PT017  likewise


@pytest.mark.parametrize("count_at", [8, 16])
@pytest.mark.parametrize("count", [2**63, 2**40, 10**6])
def test_absurd_counts_cost_nothing(
    tmp_path: Path, content: bytes, count_at: int, count: int
) -> None:
    path = tmp_path / "counts.gguf"
    path.write_bytes(content[:count_at] + struct.pack("<Q", count) + content[count_at + 8 :])
    with pytest.raises(LoadError, match="claimed"):
        open_gguf(path)


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (b"", "empty"),
        (b"GGML\x03\0\0\0", "not a GGUF file"),
        (b"GGUF\x01\0\0\0", "version 1 is not supported"),
        (b"GGUF\0\0\0\x03", "big-endian"),
        (b"GGUF\x03\0", "truncated"),
    ],
)
def test_what_is_no_readable_gguf(tmp_path: Path, head: bytes, message: str) -> None:
    path = tmp_path / "other.gguf"
    path.write_bytes(head)
    with pytest.raises(LoadError, match=message):
        open_gguf(path)


def test_overlapping_tensors_are_refused(tmp_path: Path, content: bytes) -> None:
    name = b"output_norm.weight"
    at = content.index(name) + len(name) + 4 + 8 + 4  # one dimension, then the type
    path = tmp_path / "overlap.gguf"
    path.write_bytes(content[:at] + struct.pack("<Q", 0) + content[at + 8 :])
    with pytest.raises(LoadError, match="overlaps"):
        open_gguf(path)


def test_a_key_twice_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "twice.gguf"
    path.write_bytes(content.replace(b"llama.rope.freq_base", b"llama.context_length", 1))
    with pytest.raises(LoadError, match=r"'llama\.context_length' occurs twice"):
        open_gguf(path)
