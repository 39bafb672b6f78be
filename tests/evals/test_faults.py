"""The gate sees planted faults in the embedded model, and passes benign changes.

A CI-sized form of `evals prove`: less text, so only faults that are plain in so little.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hasten.evals.cli.prove import Proof
from hasten.evals.faults import CHANGES
from hasten.evals.rows import DataFolder
from hasten.evals.store import Store
from hasten.evals.suite import Suite

SUITE = msgspec.convert(
    {
        "name": "small",
        "description": "for tests",
        "blocks": [
            {
                "kind": "text",
                "name": "text",
                "num_windows": 5,
                "window_len": 129,
                "limits": {"kl_mean": 0.012, "top1_change": 0.09},
            },
            {
                "kind": "chat",
                "name": "chat",
                "num_prompts": 8,
                "max_tokens": 16,
                "limits": {"kl_mean": 0.015},
            },
        ],
    },
    Suite,
)
IN_LITTLE_TEXT = (
    "int8 weights",
    "one layer at 3 bits",
    "wrong chat template",
)


@pytest.mark.timeout(600)
def test_faults_fail_and_benign_changes_pass(
    flags: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Store(tmp_path)
    status = Proof(store, SUITE, "embedded", flags, DataFolder(), False).run(IN_LITTLE_TEXT)
    verdicts = [record.verdict for record in store.records()]
    store.close()
    assert status == 0, capsys.readouterr().out
    assert len(verdicts) == len(IN_LITTLE_TEXT)


def test_every_change_has_a_name_of_its_own_that_marks_its_configuration() -> None:
    names = [change.name for change in CHANGES]
    assert len(set(names)) == len(names)
    assert all(change.damage.name == change.name or change.flags for change in CHANGES)
