"""`hasten bench sweep` without its command line: a grid of server flags and loads, point by point.

Each point is kept in a file as soon as it is measured, named by a hash of all that it was asked
with, so a sweep that is started again goes on where it ended. Exercised by
`pytest tests/unit/load/test_sweep.py`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import groupby, product
from pathlib import Path

import msgspec
from hasten.core.options import ConfigurationError, option
from hasten.evals.load.bench import LoadOptions, run_bench_serve
from hasten.evals.load.errors import LoadError
from hasten.evals.load.knee import knee
from hasten.evals.load.served import served
from hasten.evals.load.startup import hasten_command
from hasten.evals.load.summary import LoadSummary


@dataclass(frozen=True, slots=True)
class SweepOptions:
    """What is swept."""

    concurrencies: str = option("1,2,4,8,16,32", "clients of the closed loop, with commas")
    request_rates: str | None = option(None, "requests per second instead (open loop), with commas")

    def __post_init__(self) -> None:
        self.loads(LoadOptions())

    def loads(self, base: LoadOptions) -> list[LoadOptions]:
        """One for each rate or number of clients. Raises ConfigurationError."""
        if self.request_rates is not None:
            rates = _numbers("--request-rates", self.request_rates)
            return [replace(base, request_rate=rate) for rate in rates]
        counts = _numbers("--concurrencies", self.concurrencies)
        if any(count != int(count) for count in counts):
            raise ConfigurationError("--concurrencies must be whole numbers")
        return [replace(base, concurrency=int(count)) for count in counts]


def _numbers(flag: str, text: str) -> list[float]:
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        raise ConfigurationError(f"{flag} must be numbers with commas, got {text!r}") from None
    if min(numbers) <= 0:
        raise ConfigurationError(f"{flag} must be positive, got {text!r}")
    return numbers


def server_grid(flags: Sequence[str], axes: Sequence[str]) -> list[tuple[str, ...]]:
    """Every combination: `axes` are like `--max-num-seqs=8,32`. Raises ConfigurationError."""
    choices = []
    for axis in axes:
        name, separator, values = axis.partition("=")
        if not (name.startswith("--") and separator and values):
            raise ConfigurationError(f"--grid must be like --max-num-seqs=8,32, got {axis!r}")
        choices.append([f"{name}={value}" for value in values.split(",")])
    return [(*flags, *combination) for combination in product(*choices)]


class SweepPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One measured point. `server`: a URL, or the flags of the server that was started."""

    schema: str = "hasten.sweep.point/1"
    server: str
    load: str
    summary: LoadSummary


class Sweep(msgspec.Struct, frozen=True, kw_only=True):
    """All points in order, the knee of each server's curve, and what could not be measured."""

    schema: str = "hasten.sweep/1"
    points: list[SweepPoint]
    knees: dict[str, SweepPoint | None]
    failed: list[str]


@dataclass(frozen=True, slots=True)
class Asked:
    """A point to measure; with flags of `hasten serve`, or the URL of a server that runs."""

    url: str | None
    flags: tuple[str, ...]
    load: LoadOptions

    @property
    def server(self) -> str:
        return self.url or " ".join(("hasten serve", *self.flags))

    @property
    def name(self) -> str:
        if self.load.request_rate is not None:
            return f"{self.load.request_rate:g}/s"
        count = self.load.concurrency
        return f"{count} client{'s' if count > 1 else ''}"

    @property
    def key(self) -> str:
        asked = msgspec.json.encode([self.server, asdict(self.load)], order="sorted")
        return hashlib.sha256(asked).hexdigest()[:16]


def asked_points(
    url: str | None, grid: Sequence[tuple[str, ...]], loads: Sequence[LoadOptions]
) -> list[Asked]:
    """Server by server, so that each is started once."""
    return [Asked(url, flags, load) for flags in grid for load in loads]


Watch = Callable[[Asked, str], None]
"""Called once for each point that is done, with "measured", "kept" or the error."""


def sweep(points: Sequence[Asked], api_key: str | None, folder: Path, watch: Watch) -> Sweep:
    """Measure what `folder` does not hold yet. A point that fails is named and left out, and is
    tried again by the next sweep there. Raises OSError when the folder cannot be written.
    """
    kept = folder / "points"
    kept.mkdir(parents=True, exist_ok=True)
    done: dict[str, SweepPoint] = {}
    failed: list[str] = []
    for _, group in groupby(points, key=lambda point: point.server):
        run = _ServerRun(list(group), api_key, kept)
        for point, outcome in run.outcomes():
            if isinstance(outcome, LoadError):
                failed.append(f"{point.server}, {point.name}: {outcome}")
                watch(point, str(outcome))
            else:
                done[point.key] = outcome.point
                watch(point, "measured" if outcome.is_new else "kept")
    found = [done[point.key] for point in points if point.key in done]
    servers = dict.fromkeys(point.server for point in found)
    knees = {name: knee([p for p in found if p.server == name]) for name in servers}
    return Sweep(points=found, knees=knees, failed=failed)


@dataclass(frozen=True, slots=True)
class _Outcome:
    point: SweepPoint
    is_new: bool


@dataclass(frozen=True, slots=True)
class _ServerRun:
    """The points of one server, which is started only when one of them is missing."""

    points: Sequence[Asked]
    api_key: str | None
    folder: Path

    def outcomes(self) -> Iterator[tuple[Asked, _Outcome | LoadError]]:
        missing = []
        for point in self.points:
            stored = _read(self.folder / f"{point.key}.json")
            if stored is None:
                missing.append(point)
            else:
                yield point, _Outcome(stored, is_new=False)
        if missing:
            yield from self._measured(missing)

    def _measured(self, missing: list[Asked]) -> Iterator[tuple[Asked, _Outcome | LoadError]]:
        try:
            with _server(missing[0]) as url:
                for point in missing:
                    yield point, self._measure(point, url)
        except LoadError as error:
            yield from ((point, error) for point in missing)

    def _measure(self, point: Asked, url: str) -> _Outcome | LoadError:
        try:
            summary = run_bench_serve(url, self.api_key, point.load, lambda _done, _total: None)
        except LoadError as error:
            return error
        measured = SweepPoint(server=point.server, load=point.name, summary=summary)
        _write(self.folder / f"{point.key}.json", measured)
        return _Outcome(measured, is_new=True)


@contextmanager
def _server(point: Asked) -> Iterator[str]:
    if point.url is not None:
        yield point.url
        return
    with served(hasten_command(point.flags)) as server:
        yield server.url + "/v1"


def _read(path: Path) -> SweepPoint | None:
    """None when it is not there or does not read: then it is measured again."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=SweepPoint)
    except (OSError, msgspec.MsgspecError):
        return None


def _write(path: Path, point: SweepPoint) -> None:
    """Whole or not at all: an interrupted sweep leaves no half file."""
    part = path.with_suffix(".part")
    part.write_bytes(msgspec.json.format(msgspec.json.encode(point)))
    part.replace(path)
