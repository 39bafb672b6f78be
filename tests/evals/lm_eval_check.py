"""`make lm-eval`: lm-evaluation-harness gives the accuracies that our own scorer gives.

    python -m tests.evals.lm_eval_check PYTHON [--rows 50]

PYTHON is that of an environment with `lm_eval[api]`. Three ways to the same items: the harness's
`local-completions` against `hasten serve`, the harness's tasks on an engine in its own process, and
our choice and continuation blocks. Prints a table; exit status 1 if an item differs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
from hasten.evals.blocks.choice import ChoiceBlock
from hasten.evals.blocks.continuation import ContinuationBlock
from hasten.evals.cli.targets import engine_options
from hasten.evals.engine_target import EngineTarget
from hasten.evals.pair import Pair
from hasten.evals.rows import DataFolder

from tests.helpers.server_process import ROOT, server_process

DATA = Path(os.environ.get("HASTEN_DATA", ROOT.parent / "shared")) / "data"
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
MAX_LEN = 2048
FLAGS = f"--max-model-len {MAX_LEN} --max-num-seqs 16 --kv-cache-memory-bytes 400000000"
# Of another environment's Python: it finds what this one has installed after what it has itself.
OUR_EVALS = """
import runpy, site, sys
site.addsitedir(sys.argv.pop(1))
runpy.run_module("hasten.evals.cli", run_name="__main__", alter_sys=True)
"""


@dataclass(frozen=True, slots=True)
class Task:
    """One set of rows, as the harness is told of it and as our block reads it."""

    name: str
    metric: str
    block: ChoiceBlock | ContinuationBlock
    definition: str

    def write(self, folder: Path) -> None:
        source = json.dumps(str(DATA / self.block.source))
        (folder / f"{self.name}.yaml").write_text(
            f"task: {self.name}\n"
            "dataset_path: json\n"
            f"dataset_kwargs: {{data_files: {{test: {source}}}}}\n"
            f"test_split: test\n{self.definition}"
            f"metric_list: [{{metric: acc}}{', {metric: acc_norm}' * (self.metric != 'acc')}]\n"
        )


def tasks(rows: int) -> tuple[Task, ...]:
    choice = "output_type: multiple_choice\ndoc_to_choice: choices\ndoc_to_target: gold\n"
    return (
        Task(
            "arc_easy_local",
            "acc",
            ChoiceBlock(
                name="arc", source="choice/arc_easy.jsonl", suffix="\nAnswer:", num_items=rows
            ),
            f'{choice}doc_to_text: "{{{{query}}}}\\nAnswer:"\n',
        ),
        Task(
            "hellaswag_local",
            "acc_norm",
            ChoiceBlock(
                name="hs", source="choice/hellaswag_val_2000.jsonl", per_byte=True, num_items=rows
            ),
            f'{choice}doc_to_text: "{{{{query}}}}"\n',
        ),
        Task(
            "lambada_local",
            "acc",
            ContinuationBlock(
                name="lambada", source="choice/lambada_openai.jsonl", num_items=rows
            ),
            "output_type: loglikelihood\n"
            'doc_to_text: "{{context}}"\ndoc_to_target: " {{continuation}}"\n',
        ),
    )  # fmt: skip


def served(python: str, checked: tuple[Task, ...], folder: Path, rows: int) -> dict[str, list[int]]:
    """What `local-completions` finds at `hasten serve`, item by item."""
    with server_process(folder, ["--port=0", *FLAGS.split()]) as server:
        assert server.url, server.log
        arguments = {
            "model": "SmolLM2-135M-Instruct",
            "base_url": f"{server.url}/v1/completions",
            "tokenizer_backend": "remote",
            "num_concurrent": 4,
            "max_length": MAX_LEN,
        }
        subprocess.run(
            [
                python, "-m", "lm_eval", "--model", "local-completions",
                "--model_args", ",".join(f"{key}={value}" for key, value in arguments.items()),
                "--tasks", ",".join(task.name for task in checked),
                "--include_path", str(folder / "tasks"), "--limit", str(rows),
                "--output_path", str(folder / "out"), "--log_samples",
            ],
            check=True,
            env=os.environ | OFFLINE,
        )  # fmt: skip
    return {task.name: list(_samples(folder / "out", task)) for task in checked}


def _samples(folder: Path, task: Task) -> Iterator[int]:
    [path] = folder.rglob(f"samples_{task.name}_*.jsonl")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    yield from (int(row[task.metric]) for row in sorted(rows, key=lambda row: row["doc_id"]))


def in_process(
    python: str, checked: tuple[Task, ...], folder: Path, rows: int
) -> dict[str, list[int]]:
    """What the harness finds with our engine in its own process: a suite of harness blocks."""
    blocks = "".join(
        f'[[blocks]]\nkind = "harness"\nname = "{task.name}"\ntask = "{task.name}"\n'
        f'metric = "{task.metric}"\nnum_items = {rows}\nfolder = "{folder / "tasks"}"\n'
        for task in checked
    )
    suite = folder / "suite.toml"
    suite.write_text(f'name = "harness"\ndescription = "for a check"\n{blocks}')
    packages = next(path for path in sys.path if path.endswith("site-packages"))
    subprocess.run(
        [
            python, "-c", OUR_EVALS, packages, "run", str(suite),
            "--baseline-args", FLAGS, "--candidate-args", FLAGS,
            "--store", str(folder / "store"), "--output", str(folder / "report"),
        ],
        check=False,  # undecided: there are no limits
        env=os.environ | OFFLINE,
    )  # fmt: skip
    report = json.loads((folder / "report" / "report.json").read_text())
    return {
        block["name"]: [int(item["candidate"]) for item in block["result"]["items"]]
        for block in report["blocks"]
    }


def ours(checked: tuple[Task, ...]) -> dict[str, list[int]]:
    """What our own blocks find."""
    target = EngineTarget(engine_options("embedded", FLAGS))
    pair = Pair(target, target, DataFolder(DATA), target)
    found = {
        task.name: [int(item.candidate) for item in task.block.observe(pair).items]
        for task in checked
    }
    target.close()
    return found


@click.command()
@click.argument("python")
@click.option("--rows", default=50, show_default=True, help="Rows of each set.")
def main(python: str, rows: int) -> None:
    """Compare all three, item by item."""
    checked = tasks(rows)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "tasks").mkdir()
        for task in checked:
            task.write(folder / "tasks")
        found = {
            "ours": ours(checked),
            "harness, served": served(python, checked, folder, rows),
            "harness, in process": in_process(python, checked, folder, rows),
        }
    differing = 0
    for task in checked:
        for way, values in found.items():
            pairs = zip(values[task.name], found["ours"][task.name], strict=True)
            num = sum(one != other for one, other in pairs)
            differing += num
            mean = sum(values[task.name]) / rows
            click.echo(f"{task.name:16} {task.metric:9} {way:20} {mean:.3f}, {num} items differ")
    sys.exit(1 if differing else 0)


if __name__ == "__main__":
    main()
