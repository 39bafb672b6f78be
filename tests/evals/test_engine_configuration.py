"""The configuration of an engine says whatever can change an answer, and nothing else."""

from __future__ import annotations

from hasten.api.text.tokenizer import load_tokenizer
from hasten.core.binding import ModelBinding
from hasten.core.options import EngineOptions
from hasten.evals.cli.targets import engine_options
from hasten.evals.configuration import Configuration, differences
from hasten.evals.engine_configuration import describe, template_source
from hasten.evals.engine_target import EngineTarget


def configuration_of(options: EngineOptions) -> Configuration:
    tokenizer = load_tokenizer(options.model.tokenizer or options.model.model)
    identity = ModelBinding.load(options).identity()
    return describe(identity, options, tokenizer, template_source(options, tokenizer))


def test_what_changes_answers_changes_the_configuration(embedded: EngineTarget, flags: str) -> None:
    other = configuration_of(engine_options("embedded", f"{flags} --kernels reference"))
    if embedded.configuration.parts["kernels"] != "reference":
        changed = differences(other.parts, embedded.configuration.parts)
        assert any(line.startswith("kernels: reference here") for line in changed)
    longer = configuration_of(engine_options("embedded", flags.replace("512", "256", 1)))
    assert longer.hash == embedded.configuration.hash
