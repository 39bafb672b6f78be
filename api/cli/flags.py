"""Command-line flags from option dataclasses.

Field `max_model_len` of any option class becomes `--max-model-len`; a boolean becomes
`--name/--no-name`; help, default and choices come from the field. So each option is described
once, where it is defined. Exercised by `pytest tests/unit/api/test_flags.py`.
"""

from __future__ import annotations

import types
from dataclasses import dataclass, fields, is_dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar, Union, get_args, get_origin, get_type_hints

import click
from hasten.core.options import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_T = TypeVar("_T")

REFUSED_FLAGS = {
    "--async-scheduling": "not supported yet",
    "--cpu-offload-gb": "weights are not offloaded",
    "--data-parallel-size": "not supported yet; start several servers",
    "--device": "not supported; the device follows from --kernels",
    "--disable-log-requests": "requests are logged with --log-requests only",
    "--disable-log-stats": "statistics are served at /metrics, not logged",
    "--distributed-executor-backend": "not supported yet",
    "--download-dir": "models are not downloaded: give a directory or a GGUF file",
    "--enable-chunked-prefill": "prompts are always computed in chunks",
    "--enable-expert-parallel": "not supported yet",
    "--enable-lora": "adapters are not supported yet",
    "--guided-decoding-backend": "grammars are always llguidance's",
    "--hf-overrides": "not supported; edit the model's config.json",
    "--load-format": "the format is recognised from the files",
    "--lora-modules": "adapters are not supported yet",
    "--max-lora-rank": "adapters are not supported yet",
    "--max-logprobs": "the limit is 20",
    "--num-gpu-blocks-override": "use --kv-cache-memory-bytes",
    "--num-scheduler-steps": "not supported",
    "--pipeline-parallel-size": "not supported yet",
    "--response-role": "the role is always assistant",
    "--revision": "models are not downloaded: give a directory or a GGUF file",
    "--root-path": "not supported; rewrite paths in a reverse proxy",
    "--speculative-config": "use --spec-method, --spec-depth and --spec-max-depth",
    "--speculative-model": "draft models are not supported yet; see --spec-method",
    "--swap-space": "preempted requests are computed again, not swapped",
    "--task": "only text generation is served",
    "--tokenizer-mode": "the tokeniser is always the fast one",
    "--trust-remote-code": "code that comes with a model is never run",
    "--uvicorn-log-level": "not supported; the web server logs errors only",
}
"""Flags of vLLM that have no counterpart here, and what to do instead."""

ENVIRONMENT = {"--api-key": "HASTEN_API_KEY"}
"""Flags that may come from the environment: any user of a machine can read a command line."""


SERVING = MappingProxyType({"spec_method": "auto"})
"""What commands that answer people preset: it changes no text, and is used where it gains time."""


@dataclass(frozen=True, slots=True)
class Flag:
    """One field of an option class, as the command line shows it."""

    section: str
    name: str
    kind: type
    default: Any
    help: str
    choices: tuple[str, ...] | None

    @property
    def option(self) -> str:
        return "--" + self.name.replace("_", "-")

    def to_click(self) -> click.Option:
        declaration = self.option
        if self.kind is bool:
            declaration += f"/--no-{declaration[2:]}"
        return click.Option(
            [declaration, self.name],
            type=click.Choice(self.choices) if self.choices else self.kind,
            default=self.default,
            show_default=self.default is not None,
            help=self.help,
            envvar=ENVIRONMENT.get(self.option),
            show_envvar=True,
        )


def flags_of(options: type, section: str = "") -> Iterator[Flag]:
    """The flags of an option class, those of nested classes under the first line of each's doc."""
    hints = get_type_hints(options)
    for field in fields(options):
        kind = _without_none(hints[field.name])
        if _is_section(kind):
            yield from flags_of(kind, _section(kind))
        else:
            yield Flag(
                section=section or _section(options),
                name=field.name,
                kind=kind,
                default=field.default,
                help=field.metadata["help"],
                choices=field.metadata["choices"],
            )


def build_options(options: type[_T], values: Mapping[str, Any]) -> _T:
    """An option object, nested ones included, from parsed flags.

    Raises click.UsageError with the message of the check that failed.
    """
    hints = get_type_hints(options)
    arguments: dict[str, Any] = {}
    for field in fields(options):  # type: ignore[arg-type]  # mypy does not know a bound "any dataclass"
        kind = _without_none(hints[field.name])
        nested = _is_section(kind)
        arguments[field.name] = build_options(kind, values) if nested else values[field.name]
    try:
        return options(**arguments)
    except ConfigurationError as error:
        raise click.UsageError(str(error)) from error


def _is_section(kind: type) -> bool:
    return is_dataclass(kind)


def _section(options: type) -> str:
    return (options.__doc__ or "").splitlines()[0].rstrip(".")


def _without_none(hint: Any) -> type:
    """`int` for `int | None`."""
    arguments = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    kinds: list[type] = [argument for argument in arguments if argument is not type(None)]
    return kinds[0]


class FlagCommand(click.Command):
    """A command whose flags come from option classes, shown in one section for each.

    `without`: fields that the command sets itself; `defaults`: those that it presets otherwise.
    """

    def __init__(
        self,
        *args: Any,
        option_classes: tuple[type, ...],
        without: frozenset[str] = frozenset(),
        defaults: Mapping[str, object] = MappingProxyType({}),
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        flags = (flag for options in option_classes for flag in flags_of(options))
        self._flags = [
            replace(flag, default=defaults.get(flag.name, flag.default))
            for flag in flags
            if flag.name not in without
        ]
        self.params += [flag.to_click() for flag in self._flags]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        for argument in args:
            name = argument.partition("=")[0].replace("_", "-")
            if name in REFUSED_FLAGS:
                raise click.UsageError(f"{name}: {REFUSED_FLAGS[name]}", ctx)
        return super().parse_args(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """One section per option class, then the command's own options."""
        section_of = {flag.name: flag.section for flag in self._flags}
        own = "Options"
        sections: dict[str, list[tuple[str, str]]] = {flag.section: [] for flag in self._flags}
        sections[own] = []
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
            if record is not None:
                sections[section_of.get(parameter.name or "", own)].append(record)
        for section, records in sections.items():
            with formatter.section(section):
                formatter.write_dl(records)
