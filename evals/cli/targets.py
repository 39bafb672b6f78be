"""Opening what the user named: a model, a URL, a saved baseline, a stored run."""

from __future__ import annotations

import shlex
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click
from hasten.api.cli.flags import SERVING, FlagCommand, build_options
from hasten.core.loading import read_model_info
from hasten.core.options import ConfigurationError, EngineOptions
from hasten.evals.memory import RememberingTarget

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hasten.evals.journal import Journal
    from hasten.evals.store import Store
    from hasten.evals.target import Target
    from hasten.evals.url_target import UrlOptions

    Named = tuple[str, str]
    """A reference and its flags."""


@dataclass(frozen=True, slots=True)
class Opened:
    """Both sides, and the journal of their finished blocks."""

    baseline: RememberingTarget
    candidate: RememberingTarget
    finished: Journal


@contextmanager
def open_pair(
    store: Store, baseline: Named, candidate: Named, *, resume: bool, fresh: bool
) -> Iterator[Opened]:
    """Open both; a configuration named twice is opened once.

    What a server at a URL computes is not known by content, so its answers are only kept to
    `resume`; with `fresh` nothing is. Both are checked before the first model is loaded.
    """
    named = (baseline,) if baseline == candidate else (baseline, candidate)
    openers = [_opener(store, *one) for one in named]
    with ExitStack() as stack:
        sides: list[RememberingTarget] = []
        for one, opener in zip(named, openers, strict=True):
            keep = not fresh and (resume or not _is_url(one))
            sides.append(opener(keep))
            stack.callback(sides[-1].close)
        hashes = [side.configuration.hash for side in sides]
        keep = not fresh and (resume or not any(map(_is_url, named)))
        yield Opened(sides[0], sides[-1], store.blocks(hashes[0], hashes[-1], keep=keep))


def _opener(store: Store, reference: str, flags: str) -> Callable[[bool], RememberingTarget]:
    """What opens a side; called with whether earlier answers are kept.

    Raises at once for wrong flags, a model that is not there, a server that does not answer.
    """
    stored = store.find_side(reference)
    if stored is not None:
        if flags:
            raise ConfigurationError(f"{reference} is a stored run: flags cannot change it")
        return lambda _keep: RememberingTarget(stored, store.answers(stored.hash), None)
    if _is_url((reference, flags)):
        from hasten.evals.url_target import UrlTarget

        served = UrlTarget(reference, url_options(flags))
        return lambda keep: _remembering(store, served, keep=keep)
    options = engine_options(reference, flags)
    read_model_info(reference)
    return lambda keep: _remembering(store, _engine(options), keep=keep)


def _engine(options: EngineOptions) -> Target:
    from hasten.evals.engine_target import EngineTarget

    return EngineTarget(options)


def _remembering(store: Store, target: Target, *, keep: bool) -> RememberingTarget:
    journal = store.answers(target.configuration.hash, keep=keep)
    return RememberingTarget(target.configuration, journal, target)


def _is_url(named: Named) -> bool:
    return named[0].startswith(("http://", "https://"))


def engine_options(model: str, flags: str) -> EngineOptions:
    """Engine options from flags as `hasten serve` takes them, with its defaults.

    Raises ConfigurationError.
    """
    command = FlagCommand("engine", option_classes=(EngineOptions,), defaults=SERVING)
    values = _parse(command, flags)
    try:
        return build_options(EngineOptions, {**values, "model": model})
    except click.UsageError as error:
        raise ConfigurationError(error.format_message()) from error


def url_options(flags: str) -> UrlOptions:
    """Options of a URL target. Raises ConfigurationError."""
    from hasten.evals.url_target import UrlOptions

    command = FlagCommand("url", option_classes=(UrlOptions,))
    return UrlOptions(**_parse(command, flags))


def _parse(command: click.Command, flags: str) -> dict[str, Any]:
    try:
        return command.make_context(command.name, shlex.split(flags)).params
    except click.ClickException as error:
        raise ConfigurationError(f"{flags!r}: {error.format_message()}") from error
    except ValueError as error:
        raise ConfigurationError(f"{flags!r}: {error}") from error
