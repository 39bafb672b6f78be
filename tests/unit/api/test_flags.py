"""The command line is generated from the option classes."""

from dataclasses import dataclass, field, fields
from typing import Any

import click
import pytest
from click.testing import CliRunner
from hasten.api.cli.flags import REFUSED_FLAGS, FlagCommand, build_options, flags_of
from hasten.api.cli.main import main
from hasten.core.options import (
    CacheOptions,
    EngineOptions,
    ExecutionOptions,
    ModelOptions,
    SchedulerOptions,
    ServerOptions,
    option,
)

CLASSES = (ModelOptions, CacheOptions, SchedulerOptions, ExecutionOptions, ServerOptions)


def parse(*args: str) -> tuple[EngineOptions, ServerOptions]:
    """What `hasten serve` would make of these flags."""
    made: list[tuple[EngineOptions, ServerOptions]] = []

    def callback(**values: Any) -> None:
        made.append((build_options(EngineOptions, values), build_options(ServerOptions, values)))

    command = FlagCommand("x", callback=callback, option_classes=(EngineOptions, ServerOptions))
    command.main(list(args), standalone_mode=False)
    return made[0]


def test_no_flags_give_the_defaults() -> None:
    assert parse() == (EngineOptions(), ServerOptions())


def test_every_field_is_a_flag_with_its_help() -> None:
    shown = CliRunner().invoke(main, ["serve", "--help"], terminal_width=200).output
    for options in CLASSES:
        for each in fields(options):
            assert f"--{each.name.replace('_', '-')}" in shown
            assert each.metadata["help"] in shown


def test_no_flag_is_both_known_and_refused() -> None:
    known = {
        flag.option for options in (EngineOptions, ServerOptions) for flag in flags_of(options)
    }
    assert not known & REFUSED_FLAGS.keys()


def test_values_reach_their_field() -> None:
    engine, server = parse(
        "--max-model-len=512",
        "--no-enable-prefix-caching",
        "--target-itl-ms",
        "7.5",
        "--scheduling-policy",
        "priority",
        "--port",
        "0",
    )
    assert engine.model.max_model_len == 512
    assert engine.cache.enable_prefix_caching is False
    assert engine.scheduler.target_itl_ms == 7.5
    assert engine.scheduler.scheduling_policy == "priority"
    assert server.port == 0


def test_the_key_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HASTEN_API_KEY", "secret")
    assert parse()[1].api_key == "secret"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--max-model-le", "3"], "Did you mean one of: '--max-model-len'"),
        (["--prot", "3"], "'--port'"),
        (["--port", "x"], "'x' is not a valid integer"),
        (["--dtype", "float16"], "'float16' is not one of"),
        (["--block-size", "5"], "--block-size must be 8, 16"),
        (["--port", "70000"], "--port must be from 0 to 65535"),
        (["--max-num-batched-tokens", "3"], "must be at least --max-num-seqs, got 3 and 64"),
        (["--enable-lora"], "--enable-lora: adapters are not supported yet"),
        (["--speculative-config={}"], "--speculative-config: use --spec-method, --spec-depth and"),
        (["--trust_remote_code"], "--trust-remote-code: code that comes with a model"),
        (["a", "--model", "b"], "not both"),
        (["a", "b"], "unexpected extra argument"),
    ],
)
def test_wrong_usage_is_explained(args: list[str], message: str) -> None:
    result = CliRunner().invoke(main, ["serve", *args])
    assert result.exit_code == 2
    assert message in result.output


@dataclass(frozen=True, slots=True)
class Inner:
    """Inner things."""

    size: int | None = option(None, "how large")


@dataclass(frozen=True, slots=True)
class Outer:
    """Outer things."""

    inner: Inner = field(default_factory=Inner)
    loud: bool = option(False, "say more")


def test_nested_classes_become_sections() -> None:
    command = FlagCommand("x", callback=lambda **_: None, option_classes=(Outer,))
    with click.Context(command) as context:
        shown = command.get_help(context)
    assert shown.index("Inner things:") < shown.index("--size") < shown.index("Outer things:")
    assert "--loud / --no-loud" in shown
    assert build_options(Outer, {"size": 3, "loud": True}) == Outer(Inner(3), loud=True)


@pytest.mark.parametrize("command", ["serve", "chat", "run-batch"])
def test_commands_that_serve_people_speculate(command: str) -> None:
    found = main.get_command(click.Context(main), command)
    assert found is not None
    assert {each.name: each.default for each in found.params}["spec_method"] == "auto"
