"""Reading machine code: registers, spills, matrix instructions and the width of loads.

The tools come with Triton (`cuobjdump`, `nvdisasm`). Words of NVIDIA's SASS: HMMA and QMMA are a
warp's matrix instructions (16-bit and 8-bit floats), HGMMA and QGMMA a warp group's; LDG and LDGSTS
load from global memory, the latter into shared memory; LDL and STL touch spilled registers.
Source: CUDA Binary Utilities, "Instruction Set Reference".
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import triton

_TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
_MMA = re.compile(r"\b(HMMA|QMMA|HGMMA|QGMMA)\.(\w+)")
_GROUP_SHAPE = re.compile(r"64x(\d+)x(\d+)")
_WARP_SHAPE = re.compile(r"168(\d+)|1688")
_LOAD = re.compile(r"\bLD(?:G|GSTS)\.E(?:\.\w+)*?\.(64|128)\b|\bLD(?:G|GSTS)\.E")
_SPILL = re.compile(r"\b(?:LDL|STL)\b")
_USAGE = re.compile(r"REG:(\d+) STACK:(\d+)")


@dataclass(frozen=True, slots=True)
class MachineCode:
    """What matters of one kernel. `mma` holds (family, K step) of its matrix instructions."""

    registers: int
    stack_bytes: int
    shared_bytes: int
    num_spills: int
    mma: tuple[tuple[str, int], ...]
    mma_names: tuple[str, ...]
    widest_load_bytes: int

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> MachineCode:
        """What `to_json` wrote."""
        found = json.loads(text)
        found["mma"] = tuple((family, step) for family, step in found["mma"])
        found["mma_names"] = tuple(found["mma_names"])
        return cls(**found)


def read_cubin(cubin: bytes, shared_bytes: int) -> MachineCode:
    """Take a cubin apart."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        usage = _USAGE.search(_run("cuobjdump", "-res-usage", file.name))
        listing = _run("cuobjdump", "-sass", file.name)
    assert usage is not None, "cuobjdump printed no resource usage"
    return MachineCode(
        registers=int(usage[1]),
        stack_bytes=int(usage[2]),
        shared_bytes=shared_bytes,
        num_spills=len(_SPILL.findall(listing)),
        mma=tuple(sorted({(family, k_step(name)) for family, name in _MMA.findall(listing)})),
        mma_names=tuple(sorted({f"{family}.{name}" for family, name in _MMA.findall(listing)})),
        widest_load_bytes=max(
            (int(width or 32) // 8 for width in _LOAD.findall(listing)), default=0
        ),
    )


def k_step(shape: str) -> int:
    """Inputs that one instruction sums: 16 of 64x128x16 and of 16816, 32 of 16832."""
    group = _GROUP_SHAPE.fullmatch(shape)
    if group is not None:
        return int(group[2])
    return 8 if shape == "1688" else int(shape.removeprefix("168"))


def _run(tool: str, *arguments: str) -> str:
    command = [str(_TOOLS / tool), *arguments]
    return subprocess.check_output(command, text=True, stderr=subprocess.DEVNULL)  # noqa: S603 (tools of a package of ours)
