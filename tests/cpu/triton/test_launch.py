"""The launch table, and tuning it, without a device to measure on."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from hasten.api.cli.main import main
from hasten.kernels.triton import has_device
from hasten.kernels.triton.check.shapes import make_matrix
from hasten.kernels.triton.launch import (
    ROW_CLASSES,
    TABLE_PATH,
    LaunchConfig,
    LaunchTable,
    render_table,
    row_class,
)
from hasten.kernels.triton.matrices import to_matrix
from hasten.kernels.triton.products import segments
from hasten.kernels.triton.tune import candidates, tune


@pytest.mark.parametrize("arch", ["sm_80", "sm_89", "sm_90", "interpreter"])
def test_every_architecture_has_every_entry(arch: str) -> None:
    entries = LaunchTable.load(arch).entries
    fp8 = () if arch == "sm_80" else ("fp8", "fp8_group")
    kinds = ("dense", "packed", *fp8)
    wanted = {f"{kind}/{name}" for kind in kinds for name in ROW_CLASSES}
    assert entries.keys() == wanted | {"attention", "sample"}


@pytest.mark.parametrize(
    ("scheme", "kind"),
    [("bf16", "dense"), ("int4", "packed"), ("fp8", "fp8"), ("fp8-block", "fp8_group")],
)
def test_scales_inside_a_sum_have_tiles_of_their_own(scheme: str, kind: str) -> None:
    matrix = to_matrix(make_matrix(scheme, 256, 384, 128), torch.device("meta"), has_fp8=True)
    assert matrix.launch_kind == kind


def test_an_unknown_architecture_is_named() -> None:
    with pytest.raises(ValueError, match=r"no launch configurations for sm_70; there are: sm_90"):
        LaunchTable.load("sm_70")


def test_rows_fall_into_classes() -> None:
    found = [row_class(num_rows) for num_rows in (1, 16, 17, 64, 65, 8192)]
    assert found == ["few", "few", "some", "some", "many", "many"]


def test_saving_leaves_other_architectures_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "launch.json"
    path.write_text(TABLE_PATH.read_text())
    LaunchTable.load("sm_90", path).save(path)
    assert path.read_text() == TABLE_PATH.read_text()
    table = LaunchTable.load("sm_89", path)
    table.entries["dense/few"] = LaunchConfig(16, 64, 32, 4, 2)
    table.save(path)
    assert LaunchTable.load("sm_89", path).entries == table.entries
    assert LaunchTable.load("sm_90", path).entries == LaunchTable.load("sm_90").entries
    assert render_table({}) == "{\n\n}\n"


def test_tuning_takes_the_fastest_and_keeps_what_is_as_fast() -> None:
    table = LaunchTable.load("sm_90")
    best = next(iter(candidates("packed", "many")))
    lines: list[str] = []

    def measure(kind: str, name: str, config: LaunchConfig) -> float:
        return 1e-6 if (kind, name, config) == ("packed", "many", best) else 2e-6

    tuned = tune(table, measure, lines.append)
    assert tuned.entries == {**table.entries, "packed/many": best}
    assert "packed/many: 2 to 1 microseconds" in lines


def test_tuning_needs_a_device() -> None:
    if has_device():
        pytest.skip("there is one")
    result = CliRunner().invoke(main, ["check", "--tune"])
    assert result.exit_code == 1
    assert "--tune needs a CUDA device" in result.output


@pytest.mark.parametrize(
    ("shape", "found"),
    [
        ((6144, 4096), (6, 6)),
        ((4096, 14336), (8, 14)),
        ((128256, 4096), (1, 32)),
        ((64, 576), (1, 5)),
    ],
)
def test_segments_depend_on_the_weight_alone(
    shape: tuple[int, int], found: tuple[int, int]
) -> None:
    assert segments(*shape) == found
