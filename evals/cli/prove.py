"""`evals prove`: plant faults and show that the gate sees them, and only them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hasten.evals.cli.progress import Live
from hasten.evals.cli.targets import engine_options
from hasten.evals.engine_target import EngineTarget
from hasten.evals.faults import CHANGES
from hasten.evals.gate import Verdict
from hasten.evals.memory import RememberingTarget
from hasten.evals.pair import Pair
from hasten.evals.report.diagnosis import diagnose
from hasten.evals.report.terminal import wide_console
from hasten.evals.run import Run
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hasten.evals.faults import Change
    from hasten.evals.record import Record
    from hasten.evals.rows import DataFolder
    from hasten.evals.store import Store
    from hasten.evals.suite import Suite


@dataclass(frozen=True, slots=True)
class Proof:
    """A suite put to the test on one model."""

    store: Store
    suite: Suite
    model: str
    flags: str
    data: DataFolder
    allow_code: bool

    def run(self, only: Sequence[str]) -> int:
        """Exit status 0 if every harmful change failed and every benign one passed, else 1."""
        baseline = self._open(None)
        table = Table("change", "expected", "verdict", "failed measures", "where")
        num_wrong = 0
        for change in CHANGES:
            if only and change.name not in only:
                continue
            record = self._judge(baseline, change)
            expected = Verdict.FAIL if change.harmful else Verdict.PASS
            num_wrong += record.verdict is not expected
            table.add_row(change.name, expected.value, record.verdict.value, *_evidence(record))
        wide_console().print(table)
        return 1 if num_wrong else 0

    def _open(self, change: Change | None) -> RememberingTarget:
        if change is None:
            target = EngineTarget(engine_options(self.model, self.flags))
        else:
            options = engine_options(self.model, f"{self.flags} {change.flags}")
            target = EngineTarget(options, change.damage)
        configuration = target.configuration
        return RememberingTarget(configuration, self.store.answers(configuration.hash), target)

    def _judge(self, baseline: RememberingTarget, change: Change) -> Record:
        candidate = self._open(change)
        finished = self.store.blocks(baseline.configuration.hash, candidate.configuration.hash)
        with Live(len(self.suite.blocks)) as live:
            live.announce(change.name)
            pair = Pair(
                baseline=baseline,
                candidate=candidate,
                data=replace(self.data, hashes={}),
                author=baseline,
                progress=live,
                allow_code=self.allow_code,
            )
            record, _ = self.store.save(Run(self.suite, pair, finished, live).execute())
        candidate.close()
        return record


def _evidence(record: Record) -> tuple[str, str]:
    """The measures that did not pass, and what they point at."""
    names = [
        f"{j.name}{'' if j.verdict is Verdict.FAIL else f' ({j.verdict.value})'}"
        for j in record.judgements
        if j.verdict in (Verdict.FAIL, Verdict.UNDECIDED, Verdict.MISSING)
    ]
    return ", ".join(names), "\n".join(diagnose(record))
