"""Which tile sizes, warps and pipeline stages a kernel is launched with, by shape and architecture.

The table is `launch.json`: for each architecture, entries named "kind of weight/row class". It
decides speed only: a row's bits are those of the matrix instruction and of the order of sums, which
the kernels fix from the shapes of the weights. `hasten check --tune` fills it where there is a GPU;
`make kernels` proves that every entry compiles well. Exercised by `pytest tests/cpu/triton`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

TABLE_PATH = Path(__file__).with_name("launch.json")
INTERPRETER = "interpreter"

ROW_CLASSES = {"few": 16, "some": 64, "many": 1 << 30}
"""Most rows of each class, in order."""


def row_class(num_rows: int) -> str:
    """The class of a product with so many rows."""
    return next(name for name, most in ROW_CLASSES.items() if num_rows <= most)


@dataclass(frozen=True, slots=True)
class LaunchConfig:
    """Sizes of one program's tile: rows of activations, outputs of a weight, inputs at a time."""

    block_rows: int
    block_out: int
    block_in: int
    num_warps: int
    num_stages: int


class LaunchTable:
    """The configurations for one architecture: "sm_80", "sm_89", "sm_90" or "interpreter"."""

    def __init__(self, arch: str, entries: Mapping[str, LaunchConfig]) -> None:
        self.arch = arch
        self.entries = dict(entries)

    @classmethod
    def load(cls, arch: str, path: Path = TABLE_PATH) -> LaunchTable:
        """Raises ValueError naming the architectures in the table where `arch` is not of them."""
        table = json.loads(path.read_text())
        if arch not in table:
            raise ValueError(f"no launch configurations for {arch}; there are: {', '.join(table)}")
        entries = {name: LaunchConfig(**entry) for name, entry in table[arch].items()}
        return cls(arch, entries)

    def save(self, path: Path = TABLE_PATH) -> None:
        """Write the entries of this architecture, leaving the others as they are."""
        table = json.loads(path.read_text()) if path.exists() else {}
        table[self.arch] = {name: asdict(entry) for name, entry in self.entries.items()}
        path.write_text(render_table(table))

    def product(self, kind: str, num_rows: int) -> LaunchConfig:
        """For a product of so many rows with weights of one kind."""
        return self.entries[f"{kind}/{row_class(num_rows)}"]

    def __getitem__(self, name: str) -> LaunchConfig:
        return self.entries[name]


def render_table(table: Mapping[str, Mapping[str, object]]) -> str:
    """JSON with one entry per line, so that a tuned entry is one line of a diff."""
    archs = []
    for arch, entries in table.items():
        lines = [f'    "{name}": {json.dumps(entry)}' for name, entry in entries.items()]
        archs.append(f'  "{arch}": {{\n' + ",\n".join(lines) + "\n  }")
    return "{\n" + ",\n".join(archs) + "\n}\n"
