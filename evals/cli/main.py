"""`evals`: the group of subcommands, and how a run ends the process.

Exit status: 0 pass, 1 fail, 2 undecided or an error (wrong usage too), 130 interrupted. Nothing but
a pass is 0. Exercised by `pytest tests/unit/evals/test_cli.py`.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Callable

    from hasten.evals.record import Record
    from hasten.evals.store import Store

EXIT_ERROR = 2
NEEDED = ("scipy", "openai", "httpx")


def _options(*options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def add(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return add


store_options = _options(
    click.option(
        "--store",
        "store_root",
        type=click.Path(path_type=Path, file_okay=False),
        help="Folder of results; default: $HASTEN_EVAL_STORE, else in the user's cache.",
    ),
    click.option(
        "--key-file",
        type=click.Path(path_type=Path, exists=True, dir_okay=False),
        help="Sign records with the key in this file, and accept none that it did not sign.",
    ),
)
data_options = _options(
    click.option(
        "--data",
        type=click.Path(path_type=Path, exists=True, file_okay=False),
        envvar="HASTEN_EVAL_DATA",
        show_envvar=True,
        help="Folder of data sets that suites name.",
    ),
    click.option(
        "--allow-code", is_flag=True, help="Run programs that the models write (HumanEval-shaped)."
    ),
)
output_option = click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write report.json, report.xml (JUnit), report.md and report.html into this folder.",
)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="hasten")
def cli() -> None:
    """Measure a configuration against its baseline: no deploy without a pass.

    Exit status: 0 pass, 1 fail, 2 undecided or an error.
    """


@cli.command()
@click.argument("suite", default="quick")
@click.option("--baseline", default="embedded", show_default=True, help="What to compare with.")
@click.option("--candidate", default="embedded", show_default=True, help="What to judge.")
@click.option("--baseline-args", default="", help="Its flags, as `hasten serve` takes them.")
@click.option("--candidate-args", default="", help="Its flags.")
@click.option("--resume", is_flag=True, help="Go on with an interrupted run, timings included.")
@click.option("--fresh", is_flag=True, help="Measure everything anew.")
@data_options
@store_options
@output_option
def run(suite: str, store_root: Path | None, key_file: Path | None, **options: Any) -> None:
    """Run a SUITE (quick, standard, full, or a TOML file) and judge the candidate.

    Baseline and candidate are each a model ("embedded", a directory, a GGUF file), the URL of an
    OpenAI-compatible server, the name of a saved baseline, or the id of a stored run.
    """
    from hasten.evals.cli.commands import run_suite

    if options["resume"] and options["fresh"]:
        raise click.UsageError("--resume and --fresh exclude each other")
    _finish(lambda store: run_suite(store, suite, **options), store_root, key_file, options)


@cli.command()
@click.argument("first")
@click.argument("second")
@data_options
@store_options
@output_option
def compare(store_root: Path | None, key_file: Path | None, **options: Any) -> None:
    """Judge the candidate of run SECOND against the candidate of run FIRST."""
    from hasten.evals.cli.commands import compare_runs

    _finish(lambda store: compare_runs(store, **options), store_root, key_file, options)


@cli.command()
@click.argument("record")
@store_options
@output_option
def report(
    record: str, store_root: Path | None, key_file: Path | None, output: Path | None
) -> None:
    """Show a stored run again, and write its reports."""
    from hasten.evals.cli.commands import find_record

    _finish(lambda store: find_record(store, record), store_root, key_file, {"output": output})


@cli.command()
@click.argument("record")
@click.option("--trials", default=200, show_default=True, help="How often to draw anew.")
@store_options
def resample(record: str, store_root: Path | None, key_file: Path | None, trials: int) -> None:
    """How often RECORD's verdict comes out again when its samples are drawn anew."""
    from hasten.evals.cli.commands import resample_run

    with_store(lambda store: resample_run(store, record, trials), store_root, key_file)


@cli.group()
def baseline() -> None:
    """Names for configurations to compare with."""


@baseline.command("save")
@click.argument("name")
@click.argument("record")
@click.option(
    "--side",
    type=click.Choice(["baseline", "candidate"]),
    default="candidate",
    show_default=True,
    help="Which side of the record it names.",
)
@store_options
def baseline_save(
    name: str, record: str, side: Any, store_root: Path | None, key_file: Path | None
) -> None:
    """Call one side of RECORD by NAME."""
    from hasten.evals.cli.commands import save_baseline

    with_store(lambda store: save_baseline(store, name, record, side), store_root, key_file)


@baseline.command("list")
@store_options
def baseline_list(store_root: Path | None, key_file: Path | None) -> None:
    """Saved baselines and what they stand for."""
    from hasten.evals.cli.commands import list_baselines

    with_store(list_baselines, store_root, key_file)


@cli.command("list")
@store_options
def list_records(store_root: Path | None, key_file: Path | None) -> None:
    """Stored runs, oldest first."""
    from hasten.evals.cli.commands import list_runs

    with_store(list_runs, store_root, key_file)


@cli.command()
@click.argument("suite", default="quick")
@click.option("--model", default="embedded", show_default=True, help="Model to damage.")
@click.option("--model-args", default="", help="Its flags, as `hasten serve` takes them.")
@click.option("--only", multiple=True, help="Only this fault; may be repeated.")
@data_options
@store_options
def prove(suite: str, store_root: Path | None, key_file: Path | None, **options: Any) -> None:
    """Plant faults in a model and show that SUITE fails each of them."""
    from hasten.evals.cli.commands import prove_gate

    code = with_store(lambda store: prove_gate(store, suite, **options), store_root, key_file)
    sys.exit(code)


def _finish(
    act: Callable[[Store], Record],
    store_root: Path | None,
    key_file: Path | None,
    options: dict[str, Any],
) -> None:
    """Show the record, write the reports asked for, and exit by the verdict."""
    from hasten.evals.cli.commands import show

    def whole(store: Store) -> int:
        record = act(store)
        show(record, options["output"])
        return record.verdict.exit_code

    sys.exit(with_store(whole, store_root, key_file))


def with_store(act: Callable[[Store], Any], store_root: Path | None, key_file: Path | None) -> Any:
    """Open the store, act, and turn what can go wrong into one line and exit status 2."""
    from hasten.evals.cli.errors import EXPECTED
    from hasten.evals.store import Store, default_root

    key = None if key_file is None else key_file.read_bytes().strip()
    store = Store(store_root or default_root(), key)
    try:
        return act(store)
    except EXPECTED as error:
        click.echo(f"evals: {error}", err=True)
        sys.exit(EXIT_ERROR)
    except KeyboardInterrupt:
        click.echo("evals: interrupted; --resume goes on from here", err=True)
        sys.exit(130)
    finally:
        store.close()


def main(prog_name: str = "evals") -> None:
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        click.echo(f"evals: needs {', '.join(missing)}: pip install 'hasten[evals]'", err=True)
        sys.exit(EXIT_ERROR)
    cli(prog_name=prog_name)
