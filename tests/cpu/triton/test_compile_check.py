"""The compile check finds what it should, and the kernels pass a small form of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hasten.kernels.triton.check import compiling
from hasten.kernels.triton.check.recording import Variant
from hasten.kernels.triton.check.report import summarize
from hasten.kernels.triton.check.rules import Compiled, one_of_each, split_classes, violations
from hasten.kernels.triton.check.sass import MachineCode, k_step
from hasten.kernels.triton.device import linear as device_linear

GOOD = MachineCode(
    registers=64,
    stack_bytes=0,
    shared_bytes=32768,
    num_spills=0,
    mma=(("QGMMA", 32),),
    mma_names=("QGMMA.64x16x32",),
    widest_load_bytes=16,
)


def product(code: MachineCode | None = GOOD, block_rows: int = 16, kind: str = "fp8") -> Compiled:
    constants = (("BLOCK_ROWS", block_rows), ("CODES", ""), ("KIND", kind))
    variant = Variant("linear_kernel", "linear", (), constants, num_warps=4, num_stages=3)
    return Compiled("sm_90", "a model", variant, code, "" if code else "it broke")


def test_good_code_passes() -> None:
    assert violations(product()) == []


@pytest.mark.parametrize(
    ("compiled", "complaint"),
    [
        (product(None), "does not compile: it broke"),
        (product(replace(GOOD, num_spills=3)), "3 spills, 0 bytes of stack"),
        (product(replace(GOOD, stack_bytes=8)), "0 spills, 8 bytes of stack"),
        (product(replace(GOOD, mma=())), "matrix instructions: none, not QGMMA k32"),
        (
            product(replace(GOOD, mma=(("HMMA", 16),))),
            "matrix instructions: HMMA k16, not QGMMA k32",
        ),
        (product(kind="dense"), "matrix instructions: QGMMA k32, not HGMMA k16"),
        (product(replace(GOOD, widest_load_bytes=8)), "loads of 8 bytes at most"),
    ],
)
def test_bad_code_is_named(compiled: Compiled, complaint: str) -> None:
    assert violations(compiled) == [complaint]


def test_narrow_loads_are_allowed_where_rows_are_many() -> None:
    assert violations(product(replace(GOOD, widest_load_bytes=8), block_rows=128)) == []


def test_what_was_found_is_kept() -> None:
    assert MachineCode.from_json(GOOD.to_json()) == GOOD


def test_what_cannot_be_read_is_compiled_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_compiled = 0

    def compile_variant(_variant: Variant, _capability: int) -> MachineCode:
        nonlocal num_compiled
        num_compiled += 1
        return GOOD

    monkeypatch.setattr(compiling, "compile_variant", compile_variant)
    variant = replace(product().variant, module="hasten.kernels.triton.device.linear")

    def check() -> list[Path]:
        """Which files there are when a variant was checked."""
        assert list(compiling.compile_all([variant], 90, 1, tmp_path)) == [(variant, GOOD)]
        return list(tmp_path.iterdir())

    monkeypatch.setattr(device_linear.linear_kernel, "cache_key", "a kernel", raising=False)
    (kept,) = check()
    assert [kept] == check()
    assert num_compiled == 1
    for unreadable in ("", '{"registers": 64', "[]", "{}"):
        kept.write_text(unreadable)
        assert [kept] == check()
    assert num_compiled == 5
    monkeypatch.setattr(compiling, "_own_source", lambda: "another reader")
    assert len(check()) == 2


def test_a_bit_class_with_two_instructions_is_found() -> None:
    other = product(replace(GOOD, mma=(("HMMA", 16),)), block_rows=64)
    assert split_classes([product(), product(block_rows=128)]) == {}
    assert list(split_classes([product(), other])) == ["sm_90 linear_kernel fp8"]


def test_instructions_are_read() -> None:
    assert [k_step(name) for name in ("64x128x16", "64x16x32", "16816", "16832", "1688")] == [
        16,
        32,
        16,
        32,
        8,
    ]


def test_a_summary_joins_variants_of_one_tile() -> None:
    small = product(replace(GOOD, registers=40))
    (row,) = summarize([product(), small])
    assert row == (
        "sm_90",
        "linear",
        "fp8",
        "16",
        "4 x 3",
        "2",
        "QGMMA.64x16x32",
        "40 to 64",
        "32",
        "0",
        "16 bytes",
    )
    variants = {product().variant: "a", small.variant: "b", product(block_rows=64).variant: "c"}
    assert len(one_of_each(variants)) == 2


RECORD = """
import json, sys
from dataclasses import asdict
from hasten.kernels.triton.check.recording import record_launches
from hasten.kernels.triton.check.shapes import SCHEMES, all_programs

def products(model):
    launched = record_launches("sm_90", all_programs((model,), SCHEMES))
    return [asdict(variant) for variant in launched if variant.kernel == "linear_kernel"]

print(json.dumps([products(model) for model in sys.argv[1:]]))
"""


def run_compiled(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Python where kernels are compiled, not interpreted as in these tests."""
    inherited = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    return subprocess.run(
        [sys.executable, *arguments],
        env=inherited | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_widths_share_what_is_compiled() -> None:
    done = run_compiled(
        "-c",
        RECORD,
        "Llama-3-8B",
        "Qwen3-8B",
        "SmolLM2-135M",
        "experts, window, cap, sinks, odd vocabulary",
    )
    assert done.returncode == 0, done.stderr
    one, other, narrow, odd = json.loads(done.stdout)
    assert all(each in one for each in other)
    assert all(["width", "i32", True] in each["arguments"] for each in one + other + narrow)
    assert all(["out_width", "i32", True] in each["arguments"] for each in one + other + narrow)
    # 32003 outputs, in rows of as many: no loads and stores of 16 bytes.
    heads = [each for each in odd if ["out_width", "i32", False] in each["arguments"]]
    assert heads
    assert all(["result_stride", "i32", False] in each["arguments"] for each in heads)
    # Triton compiles the number 1 in, so a single segment is apart.
    assert any(["num_segments", 1] in each["constants"] for each in narrow)
    assert any(["num_segments", "i32", False] in each["arguments"] for each in one)


def test_products_and_attention_compile_well_for_hopper(tmp_path: Path) -> None:
    """One of each kind and tile; `make kernels` compiles them all."""
    done = run_compiled(
        *("-m", "hasten.kernels.triton.check"),
        *("--quick", "--arch=sm_90", "--model=SmolLM2-135M", "--scheme=fp8"),
        *("--kernel=linear_kernel", "--kernel=attention_kernel"),
        *(f"--out={tmp_path}", f"--kept={tmp_path / 'kept'}"),
        TRITON_CACHE_DIR=str(tmp_path / "cache"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "kernels.json").read_text())
    kinds = {"fp8", "fp8 cache"}
    assert {entry["kind"] for entry in found} == kinds
    assert "QGMMA.64x16x32" in (tmp_path / "kernels.md").read_text()
    kept = [MachineCode.from_json(path.read_text()) for path in (tmp_path / "kept").iterdir()]
    assert sorted(code.registers for code in kept) == sorted(entry["registers"] for entry in found)
