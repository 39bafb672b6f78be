"""`hasten bench spec` without its command line: speculation against none, load by load.

Every configuration is an engine in this process. In each repeat all of them decode the same
prompts, a moment each in turns, so that what else the machine does falls on all alike; ratios are
between runs of one repeat. Repeats see nothing of each other's texts: a prompt that comes again
would be answered by heart. Exercised by `pytest tests/cpu/api/test_spec_bench.py`.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field, replace
from itertools import cycle, islice
from statistics import median
from time import perf_counter, process_time
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from hasten.api.engine import build_engine
from hasten.api.text_model import template_of, tokenizer_of
from hasten.core.messages import AddRequest
from hasten.core.options import ConfigurationError, SpeculationOptions, option
from hasten.core.params import GenerationParams
from hasten.spec.training.prompts import built_in_prompts, read_prompts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from hasten.core.engine import Engine
    from hasten.core.options import EngineOptions

OFF = "off"
FULL_LOADS, FULL_DEPTHS = "1,2,4,8,16,32", "1,2,4,8,auto"
CLOCKS: dict[str, Callable[[], float]] = {"wall": perf_counter, "cpu": process_time}
NAMES = ("Ann", "Bob", "Cid", "Dee", "Eve", "Fay", "Gus", "Hal", "Ida", "Jon", "Kim", "Lea")
RANDOM_PROMPT_LEN = 64
NUM_RESAMPLES = 10_000
"""Of the repeats, for the bound of a median."""
PROMPTS_PER_SEAT = 3
SLICE_S = 0.1
"""For so long a configuration computes before the next one does: what else the machine does changes
within seconds."""
LAST = object()


@dataclass(frozen=True, slots=True)
class SpecBenchOptions:
    """What is measured."""

    loads: str = option("1,8,32", "how many requests decode together, with commas")
    methods: str = option("auto", "what guesses (as --spec-method), with commas")
    depths: str = option("auto", "how deep (as --spec-depth), with commas")
    full: bool = option(False, f"loads {FULL_LOADS}, depths {FULL_DEPTHS}")
    prompts: str = option(
        "chat",
        "with commas: chat (built in; a shipped head has learnt from these), copy (answers repeat "
        "the prompt), random (tokens that nobody guesses), or a file with a prompt a line",
    )
    max_tokens: int = option(100, "tokens of each answer")
    repeats: int = option(7, "runs of each configuration, all on other prompts")
    clock: str = option(
        "wall", "wall, or cpu: this process alone, on a machine that others use too", tuple(CLOCKS)
    )

    def __post_init__(self) -> None:
        if self.repeats < 1 or self.max_tokens < 2:
            raise ConfigurationError("--repeats must be at least 1 and --max-tokens 2")
        if not all(load.isdigit() and int(load) > 0 for load in self.loads.split(",")):
            raise ConfigurationError("--loads must be numbers with commas")
        if not all(depth.isdigit() or depth == "auto" for depth in self.depths.split(",")):
            raise ConfigurationError("--depths must be numbers or auto, with commas")

    @property
    def sizes(self) -> list[int]:
        return [int(load) for load in (FULL_LOADS if self.full else self.loads).split(",")]

    @property
    def configurations(self) -> list[str]:
        """`off`, then METHOD:DEPTH."""
        depths = (FULL_DEPTHS if self.full else self.depths).split(",")
        return [OFF, *(f"{m}:{depth}" for m in self.methods.split(",") for depth in depths)]


class SpecRow(msgspec.Struct, frozen=True):
    """One configuration at one load. Ratios are to `off`, by repeat: median and extremes.

    `depth` is the mean number of drafts per request and step, `acceptance` the share of them that
    were right; `itl_ms` are the median and the 99th percentile over tokens. `rates` are tokens per
    second by repeat.
    """

    prompts: str
    load: int
    configuration: str
    rates: tuple[float, ...]
    ratio: float
    ratio_range: tuple[float, float]
    itl_ms: tuple[float, float]
    depth: float
    acceptance: float

    @property
    def tokens_per_s(self) -> float:
        return median(self.rates)


class Comparison(msgspec.Struct, frozen=True):
    """A depth that follows the load against the fastest of `off` and the fixed depths.

    The median ratio over repeats, and what it exceeds with a probability of 95 % (bootstrap).
    """

    prompts: str
    load: int
    configuration: str
    against: str
    ratio: float
    at_least: float


def comparisons(rows: Sequence[SpecRow]) -> list[Comparison]:
    """Of every configuration whose depth is `auto`, at each load."""
    found = []
    for row in rows:
        if not row.configuration.endswith(":auto"):
            continue
        others = [
            other
            for other in rows
            if (other.prompts, other.load) == (row.prompts, row.load)
            and not other.configuration.endswith(":auto")
        ]
        best = max(others, key=lambda other: other.tokens_per_s)
        ratios = np.array(row.rates) / np.array(best.rates)
        resampled = np.random.default_rng(0).choice(ratios, (NUM_RESAMPLES, len(ratios)))
        at_least = float(np.quantile(np.median(resampled, axis=1), 0.05))
        found.append(
            Comparison(
                row.prompts,
                row.load,
                row.configuration,
                best.configuration,
                float(np.median(ratios)),
                at_least,
            )
        )
    return found


@dataclass(slots=True)
class _Run:
    """What the requests of one run gave while all seats were taken, from the first tokens on."""

    num_tokens: int = 0
    seconds: float = 0.0
    gaps_s: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        return self.num_tokens / self.seconds


def run_spec_bench(
    engine_options: EngineOptions, options: SpecBenchOptions, progress: Callable[[str], None]
) -> Iterator[SpecRow]:
    """Rows as they come; `progress` is told what runs. Raises ConfigurationError, LoadError."""
    engines = {name: build_engine(_with(engine_options, name)) for name in options.configurations}
    ready = engines[OFF].ready_message()
    for kind in options.prompts.split(","):
        prompts = prompts_of(kind, engine_options, ready.vocab_size)
        is_random = kind == "random"
        params = GenerationParams(
            max_tokens=options.max_tokens,
            seed=1,
            temperature=1.0 if is_random else 0.0,
            ignore_eos=is_random,
            eos_token_ids=ready.eos_token_ids,
        )
        for load in options.sizes:
            yield from _rows(kind, load, engines, prompts, params, options, progress)


def _rows(
    kind: str,
    load: int,
    engines: dict[str, Engine],
    prompts: Iterator[list[int]],
    params: GenerationParams,
    options: SpecBenchOptions,
    progress: Callable[[str], None],
) -> Iterator[SpecRow]:
    names = list(engines)
    runs: dict[str, list[_Run]] = {name: [] for name in names}
    before = {name: engine.stats() for name, engine in engines.items()}
    for repeat in range(options.repeats):
        batch = list(islice(prompts, PROMPTS_PER_SEAT * load))
        progress(f"{kind}, {load} at once, repeat {repeat + 1}")
        shift = repeat % len(names)
        decoding = []
        for name in names[shift:] + names[:shift]:
            seats = _Seats(engines[name], load, params, cache_salt=str(repeat))
            runs[name].append(_Run())
            decoding.append(_decode(seats, batch, CLOCKS[options.clock], runs[name][-1]))
        while decoding:
            decoding = [slices for slices in decoding if next(slices, LAST) is not LAST]
    for name in names:
        ratios = sorted(a.rate / b.rate for a, b in zip(runs[name], runs[OFF], strict=True))
        gaps = sorted(gap for run in runs[name] for gap in run.gaps_s)
        now, then = engines[name].stats(), before[name]
        counts = [n - m for n, m in zip(now.draft_depths, then.draft_depths, strict=True)]
        num_drafts = now.num_draft_tokens - then.num_draft_tokens
        num_right = now.num_accepted_draft_tokens - then.num_accepted_draft_tokens
        yield SpecRow(
            prompts=kind,
            load=load,
            configuration=name,
            rates=tuple(run.rate for run in runs[name]),
            ratio=median(ratios),
            ratio_range=(ratios[0], ratios[-1]),
            itl_ms=(1000 * median(gaps), 1000 * gaps[int(0.99 * (len(gaps) - 1))]),
            depth=num_drafts / max(sum(counts), 1),
            acceptance=num_right / max(num_drafts, 1),
        )


def _with(options: EngineOptions, configuration: str) -> EngineOptions:
    """The options with this configuration's speculation; drafters only where they are used."""
    method, _, depth = configuration.partition(":")
    given = options.speculation
    speculation = SpeculationOptions(
        method,
        depth or "auto",
        spec_max_depth=given.spec_max_depth,
        spec_draft_model=given.spec_draft_model if method in ("draft", "auto") else None,
        spec_eagle_head=given.spec_eagle_head if method in ("eagle", "auto") else None,
    )
    cache = replace(options.cache, enable_prefix_caching=False)
    return replace(options, speculation=speculation, cache=cache)


def prompts_of(kind: str, options: EngineOptions, vocab_size: int) -> Iterator[list[int]]:
    """Prompts without end: `chat`, `copy`, `random`, or those of a file, again and again.

    Raises ConfigurationError for a file that cannot be read.
    """
    from pathlib import Path

    rng = random.Random(1)  # noqa: S311 (the same prompts each time)
    while kind == "random":
        first = vocab_size // 100  # special tokens come before
        yield [rng.randrange(first, vocab_size) for _ in range(RANDOM_PROMPT_LEN)]
    tokenizer = tokenizer_of(options)
    template = template_of(options, tokenizer)
    for text in _copy_texts(rng) if kind == "copy" else cycle(_texts(kind, Path(kind))):
        if template is not None:
            text = template.render([{"role": "user", "content": text}])  # noqa: PLW2901
        yield tokenizer.encode(text, add_special_tokens=template is None)


def _texts(kind: str, path: Path) -> list[str]:
    if kind == "chat":
        return built_in_prompts(seed=1)
    try:
        texts = read_prompts(path)
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"--prompts {kind}: {error}") from error
    random.Random(1).shuffle(texts)  # noqa: S311 (files are often ordered by kind)
    return texts


def _copy_texts(rng: random.Random) -> Iterator[str]:
    while True:
        lines = [f"{rng.choice(NAMES)}, {rng.randrange(1000)} Main Street" for _ in range(12)]
        yield "Repeat these lines exactly:\n" + "\n".join(lines)


@dataclass(frozen=True, slots=True)
class _Seats:
    """How many requests decode together, and how each asks."""

    engine: Engine
    num: int
    params: GenerationParams
    cache_salt: str

    def add(self, idx: int, prompt: list[int]) -> None:
        refused = self.engine.add_request(
            AddRequest(
                request_id=str(idx),
                prompt_token_ids=prompt,
                params=self.params,
                cache_salt=self.cache_salt,
            )
        )
        if refused is not None:
            raise ConfigurationError(refused.message)


def _decode(
    seats: _Seats, prompts: Sequence[list[int]], clock: Callable[[], float], run: _Run
) -> Iterator[None]:
    """All seats decode together as long as there are prompts; who ends is replaced.

    Others get their turn whenever `SLICE_S` have passed.
    """
    left = deque(enumerate(prompts))
    for _ in range(seats.num):
        seats.add(*left.popleft())
    begun: set[str] = set()
    num_ended, slice_ends = 0, perf_counter() + SLICE_S
    while num_ended <= len(left):
        if perf_counter() > slice_ends:
            yield
            slice_ends = perf_counter() + SLICE_S
        for _ in range(num_ended):
            seats.add(*left.popleft())
        begin = clock()
        outputs = seats.engine.step()
        seconds = clock() - begin
        num_ended = sum(output.finish_reason is not None for output in outputs)
        counts = [len(output.token_ids) for output in outputs if output.token_ids]
        if len(begun) < seats.num:
            begun.update(output.request_id for output in outputs if output.token_ids)
            continue
        run.num_tokens += sum(counts)
        run.seconds += seconds
        run.gaps_s += [seconds / count for count in counts for _ in range(count)]
    seats.engine.abort_all()
    if run.num_tokens == 0:
        raise ConfigurationError("answers ended before all had begun: --max-tokens is too low")
