"""What the subcommands do, once the store is open."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from hasten.evals.cli.progress import Live
from hasten.evals.cli.targets import open_pair
from hasten.evals.compare import Comparison
from hasten.evals.pair import Pair
from hasten.evals.record import RecordError
from hasten.evals.report import print_report, write_reports
from hasten.evals.resample import resampled_verdicts
from hasten.evals.rows import DataFolder
from hasten.evals.run import Run
from hasten.evals.store import NamedBaseline
from hasten.evals.suite import load_suite

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from hasten.evals.record import Record
    from hasten.evals.store import SideName, Store


def run_suite(
    store: Store,
    suite: str,
    *,
    baseline: str,
    candidate: str,
    baseline_args: str,
    candidate_args: str,
    data: Path | None,
    allow_code: bool,
    resume: bool,
    fresh: bool,
    output: Path | None,
) -> Record:
    """`evals run`."""
    del output  # written by the caller, who has the record
    loaded = load_suite(suite)
    with (
        open_pair(
            store,
            (baseline, baseline_args),
            (candidate, candidate_args),
            resume=resume,
            fresh=fresh,
        ) as opened,
        Live(len(loaded.blocks)) as live,
    ):
        pair = Pair(
            baseline=opened.baseline,
            candidate=opened.candidate,
            data=DataFolder(data),
            author=opened.baseline,
            progress=live,
            allow_code=allow_code,
        )
        record = Run(loaded, pair, opened.finished, live, recall_timings=resume).execute()
    sealed, path = store.save(record)
    click.echo(f"record {sealed.record_id} in {path}")
    return sealed


def compare_runs(
    store: Store,
    *,
    first: str,
    second: str,
    data: Path | None,
    allow_code: bool,
    output: Path | None,
) -> Record:
    """`evals compare`."""
    del output
    one, other = find_record(store, first), find_record(store, second)
    record = Comparison(store, DataFolder(data), one, other, allow_code=allow_code).execute()
    return store.save(record)[0]


def find_record(store: Store, reference: str) -> Record:
    """The stored run of that id or file. Raises RecordError."""
    record = store.find(reference)
    if record is None:
        raise RecordError(f"no stored run {reference!r} in {store.root}")
    return record


def show(record: Record, output: Path | None) -> None:
    """Print the verdict; write all report formats into a folder if one is given."""
    print_report(record)
    if output is not None:
        write_reports(record, output)
        click.echo(f"reports in {output}")


def resample_run(store: Store, reference: str, num_trials: int) -> None:
    """`evals resample`."""
    verdicts = resampled_verdicts(find_record(store, reference), num_trials)
    for verdict, count in verdicts.most_common():
        click.echo(f"{verdict.value}: {count} of {num_trials} trials")


def save_baseline(store: Store, name: str, reference: str, side: SideName) -> None:
    """`evals baseline save`."""
    record = find_record(store, reference)
    store.save_baseline(NamedBaseline(name, record.record_id, side))
    configuration = record.baseline if side == "baseline" else record.candidate
    click.echo(f"{name}: {configuration.name}")


def list_baselines(store: Store) -> None:
    """`evals baseline list`."""
    for one in store.baselines():
        click.echo(f"{one.name}\t{one.side} of {one.record_id}")


def list_runs(store: Store) -> None:
    """`evals list`."""
    for record in store.records():
        click.echo(
            f"{record.record_id}\t{record.created}\t{record.suite.name}\t{record.verdict.value}\t"
            f"{record.candidate.name} against {record.baseline.name}"
        )


def prove_gate(
    store: Store,
    suite: str,
    *,
    model: str,
    model_args: str,
    only: Sequence[str],
    data: Path | None,
    allow_code: bool,
) -> int:
    """`evals prove`: 0 if every planted fault fails and every benign change passes."""
    from hasten.evals.cli.prove import Proof

    proof = Proof(store, load_suite(suite), model, model_args, DataFolder(data), allow_code)
    return proof.run(only)
