"""How a driver is spoken to. Standard library and torch only.

The job is the JSON file argv[1]. Each line written to the open file of number argv[2] is a JSON
object: `{"layers": 3}` when so many layers are finished. Standard output and error are the tool's.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Job:
    """What is to be made: the fields of `core.quantize.tools.run.job_of`."""

    model: str  # a Hugging Face directory
    out: str  # a directory to be made
    scheme: str
    group_size: int | None
    activations: str
    kv_cache: str | None
    token_ids: list[list[int]]


@dataclass(slots=True)
class Progress:
    """Says how many layers are finished, each number once."""

    out: Any
    num_finished: int = 0

    def finished(self, num_layers: int) -> None:
        if num_layers > self.num_finished:
            self.num_finished = num_layers
            self.out.write(json.dumps({"layers": num_layers}) + "\n")
            self.out.flush()

    def follow(self, layers: Iterable[Any]) -> None:
        """Take a layer for finished when the tool first runs the one behind it."""
        for idx, layer in enumerate(layers):
            layer.register_forward_pre_hook(lambda *_, before=idx: self.finished(before))


def run_job(quantize: Callable[[Job, Progress], None]) -> None:
    """Read the job and do it."""
    job = Job(**json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
    with os.fdopen(int(sys.argv[2]), "w", encoding="utf-8") as out:
        quantize(job, Progress(out))


def compute_dtype() -> Any:
    """fp32 on a CPU, where half precision is very slow."""
    import torch

    return torch.float16 if torch.cuda.is_available() else torch.float32


def shrink_tables(model: Any) -> None:
    """The embedding and the head, which no tool quantises, as bf16: all that they held before."""
    import torch

    for table in (model.get_input_embeddings(), model.get_output_embeddings()):
        table.to(torch.bfloat16)
