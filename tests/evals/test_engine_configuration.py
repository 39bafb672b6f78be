"""The configuration that serving asks for is the one that evaluation recorded."""

from __future__ import annotations

from pathlib import Path

import pytest
from hasten.evals.cli.targets import engine_options
from hasten.evals.configuration import differences
from hasten.evals.engine_configuration import check_evaluated, configuration_of
from hasten.evals.engine_target import EngineTarget
from hasten.evals.gate import Verdict
from hasten.evals.record import Record
from hasten.evals.store import NotEvaluatedError, Store
from hasten.evals.suite import load_suite


def passing(target: EngineTarget) -> Record:
    return Record(
        created="2024-01-01T00:00:00+00:00",
        suite=load_suite("quick"),
        baseline=target.configuration,
        candidate=target.configuration,
        data={},
        blocks=[],
        judgements=[],
        verdict=Verdict.PASS,
    )


def test_an_engine_not_started_has_the_configuration_of_one_that_is(
    embedded: EngineTarget, flags: str
) -> None:
    assert configuration_of(engine_options("embedded", flags)) == embedded.configuration


def test_serving_needs_a_pass_of_exactly_this_configuration(
    embedded: EngineTarget, flags: str, tmp_path: Path
) -> None:
    options = engine_options("embedded", flags)
    with pytest.raises(NotEvaluatedError, match="no passing 'quick' record"):
        check_evaluated(options, "quick", tmp_path)
    Store(tmp_path).save(passing(embedded))
    assert check_evaluated(options, "quick", tmp_path).verdict is Verdict.PASS
    with pytest.raises(NotEvaluatedError, match="no passing"):
        check_evaluated(options, "quick", tmp_path, key=b"secret")
    template = tmp_path / "template.jinja"
    template.write_text("{{ messages[0]['content'] }}")
    changed = engine_options("embedded", f"{flags} --chat-template {template}")
    with pytest.raises(NotEvaluatedError, match=r"nearest differs in chat_template: \w+ here"):
        check_evaluated(changed, "quick", tmp_path)


def test_what_changes_answers_changes_the_configuration(embedded: EngineTarget, flags: str) -> None:
    other = configuration_of(engine_options("embedded", f"{flags} --kernels reference"))
    if embedded.configuration.parts["kernels"] != "reference":
        changed = differences(other.parts, embedded.configuration.parts)
        assert any(line.startswith("kernels: reference here") for line in changed)
    longer = configuration_of(engine_options("embedded", flags.replace("512", "256", 1)))
    assert longer.hash == embedded.configuration.hash
