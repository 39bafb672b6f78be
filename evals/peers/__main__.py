"""`python -m hasten.evals.peers`: measure the engines side by side."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec
from hasten.evals.load.errors import LoadError
from hasten.evals.peers.engines import ENGINES
from hasten.evals.peers.measure import Comparison, Figure
from hasten.evals.peers.report import write_report
from rich.console import Console

FIGURES = "performance.json"


@click.command()
@click.option("--engines", default=",".join(ENGINES), show_default=True, help="Which, with commas.")
@click.option("--repeats", default=5, show_default=True, help="Repetitions of each measurement.")
@click.option(
    "--environments",
    type=click.Path(file_okay=False, path_type=Path),
    default="build/peers",
    show_default=True,
    help="Folder for the environments and model files of the others.",
)
@click.option(
    "--prompts",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="jsonl of chat prompts for HTTP; without it they are made up.",
)
@click.option(
    "--parts",
    default="in-process,served,speculating",
    show_default=True,
    help="What to measure, with commas.",
)
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default="docs",
    show_default=True,
    help="Folder for performance.md, performance.svg and performance.json.",
)
def main(
    engines: str, repeats: int, environments: Path, prompts: Path | None, parts: str, output: Path
) -> None:
    """Compare this server with others on the embedded model, and write docs/performance.md."""
    console = Console(stderr=True)
    unknown = set(engines.split(",")) - set(ENGINES)
    if unknown:
        raise click.UsageError(f"--engines knows {', '.join(ENGINES)}, not {', '.join(unknown)}")
    folder = environments.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    chosen = [ENGINES[name](folder) for name in engines.split(",")]
    for engine in chosen:
        console.print(f"preparing {engine.name}")
        engine.prepare()
    comparison = Comparison(chosen, repeats, prompts, console.print)
    figures: list[Figure] = []
    try:
        if "in-process" in parts:
            figures += comparison.in_process()
        if "served" in parts:
            figures += comparison.served()
        if "speculating" in parts:
            figures += comparison.speculating()
    except LoadError as error:
        raise click.ClickException(str(error)) from error
    figures = _with_earlier(output / FIGURES, figures)
    json = msgspec.json.format(msgspec.json.encode(figures))
    (output / FIGURES).write_bytes(json + b"\n")
    write_report(figures, repeats, output)


def _with_earlier(path: Path, figures: list[Figure]) -> list[Figure]:
    """Parts that were measured before keep their figures until they are measured again."""
    if not path.is_file():
        return figures
    measured = {figure.name: figure for figure in figures}
    earlier = msgspec.json.decode(path.read_bytes(), type=list[Figure])
    kept = [measured.pop(figure.name, figure) for figure in earlier]
    return [*kept, *measured.values()]


if __name__ == "__main__":
    main()
