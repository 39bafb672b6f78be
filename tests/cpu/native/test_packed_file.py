"""Packed weights on disk: found again, made again when anything about them is wrong."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hasten.core.loading import LoadedModel
from hasten.core.prompt_batch import PromptChunk, PromptLayout
from hasten.kernels.backend import KeptWeights
from hasten.kernels.cpu import CpuBackend, packed_file, packing
from hasten.kernels.cpu import lowering as lowering_module
from hasten.kernels.dtypes import DType
from hasten.kernels.program import Capacity
from hasten.kernels.weights import Matrix

from tests.helpers.random_models import random_model, tiny_config

F32 = npt.NDArray[np.float32]
PROMPT = np.arange(1, 30, dtype=np.int32)


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return random_model(tiny_config())


@pytest.fixture
def packs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shape of every matrix that is packed, and no lower limit on what is kept."""
    shapes: list[tuple[int, ...]] = []

    def counting_pack(
        weight: Matrix, target: packing.WeightFormat, arena: Any
    ) -> packing.PackedMatrix:
        shapes.append(weight.shape)
        return packing.pack(weight, target, arena)

    monkeypatch.setattr(lowering_module, "pack", counting_pack)
    monkeypatch.setattr(packed_file, "MIN_KEPT_BYTES", 1)
    return shapes


Start = Callable[[DType], F32]


@pytest.fixture
def start(model: LoadedModel, make_backend: Callable[..., CpuBackend], tmp_path: Path) -> Start:
    """Compiles the model as a start of a server would; returns what it computes."""

    def compile_and_run(dtype: DType = DType.BF16) -> F32:
        backend = make_backend(1)
        program = model.build_program(dtype, dtype)
        program.tap("out", next(b for b in program.buffers if b.name == "head.normed"))
        layout = PromptLayout(program.kv_groups, 1, len(PROMPT))
        cache = backend.allocate_kv(layout.kv_plan())
        capacity = Capacity(len(PROMPT), 1, len(PROMPT), len(PROMPT))
        weights = KeptWeights(model.weights, tmp_path / "packed")
        executable = backend.compile(program, weights, cache, capacity)
        executable.run(layout.batch([PromptChunk(PROMPT, wants_logits=True)]))
        return executable.tap("out").copy()

    return compile_and_run


Packs = list[tuple[int, ...]]


def files(folder: Path) -> list[Path]:
    return sorted((folder / "packed").iterdir())


def test_the_second_start_packs_nothing(packs: Packs, start: Start, tmp_path: Path) -> None:
    first = start(DType.BF16)
    assert packs
    packs.clear()
    np.testing.assert_array_equal(start(DType.BF16), first)
    assert packs == []
    assert len(files(tmp_path)) == 1


def test_one_file_serves_several_dtypes(packs: Packs, start: Start, tmp_path: Path) -> None:
    first = {dtype: start(dtype) for dtype in (DType.BF16, DType.F32)}
    packs.clear()
    for dtype, rows in first.items():
        np.testing.assert_array_equal(start(dtype), rows)
    assert packs == []
    assert len(files(tmp_path)) == 1


def cut(path: Path, content: bytes) -> None:
    path.write_bytes(content[: len(content) - 1000])


def flip(path: Path, content: bytes) -> None:
    path.write_bytes(content[:-5000] + bytes([content[-5000] ^ 16]) + content[-4999:])


def empty(path: Path, content: bytes) -> None:
    path.write_bytes(b"")


def other(path: Path, content: bytes) -> None:
    path.write_bytes(b"[1, 2]" * 1000)


def list_header(path: Path, content: bytes) -> None:
    path.write_bytes(packed_file.MAGIC + (6).to_bytes(8, "little") + b"[1, 2]" + content)


@pytest.mark.parametrize("damage", [cut, flip, empty, other, list_header])
def test_a_damaged_file_is_made_again(
    damage: Callable[[Path, bytes], None],
    packs: Packs,
    start: Start,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    first = start(DType.BF16)
    path = files(tmp_path)[0]
    whole = path.read_bytes()
    damage(path, whole)
    with caplog.at_level(logging.WARNING):
        np.testing.assert_array_equal(start(DType.BF16), first)
    assert "made again" in caplog.text
    packs.clear()
    np.testing.assert_array_equal(start(DType.BF16), first)
    assert packs == []


def test_a_folder_that_cannot_be_written_is_only_logged(
    packs: Packs, start: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "packed").write_text("in the way")
    with caplog.at_level(logging.WARNING):
        first = start(DType.BF16)
    assert "not kept" in caplog.text
    np.testing.assert_array_equal(start(DType.BF16), first)


def test_files_of_other_layouts_go(packs: Packs, start: Start, tmp_path: Path) -> None:
    start(DType.BF16)
    path = files(tmp_path)[0]
    stale = path.with_name(path.name.partition("-")[0] + "-0123456789abcdef.packed")
    path.rename(stale)
    start(DType.BF16)
    assert files(tmp_path) == [path]


def test_a_compilation_of_other_weights_keeps_out(
    packs: Packs, start: Start, make_backend: Callable[..., CpuBackend]
) -> None:
    """A drafter's weights have the names of the target's."""
    start(DType.BF16)
    packs.clear()
    other = random_model(tiny_config(), seed=1)
    program = other.build_program(DType.BF16, DType.BF16)
    backend = make_backend(1)
    layout = PromptLayout(program.kv_groups, 1, 16)
    cache = backend.allocate_kv(layout.kv_plan())
    backend.compile(program, other.weights, cache, Capacity(16, 1, 1, 16))
    assert packs


def test_small_models_are_not_kept(start: Start, tmp_path: Path) -> None:
    start(DType.BF16)
    assert not (tmp_path / "packed").exists()
