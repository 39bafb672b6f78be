"""What is compared: decoding and reading in one process, and what clients of the servers see.

Engines take turns within every repetition, so that a busy minute of the machine meets all of them.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from operator import methodcaller
from pathlib import Path
from statistics import median

import msgspec
from hasten.evals.load.bench import LoadOptions, run_bench_serve
from hasten.evals.load.served import ServedProcess, served
from hasten.evals.load.summary import LoadSummary
from hasten.evals.peers.engines import KV_TOKENS, Engine
from hasten.evals.peers.worker import Worker

STREAMS = (1, 8, 32)
PROMPT_LENS = (512, 2048)
POISSON_SHARE = 0.7
OUTPUT_LEN, SPECULATED_LEN = 128, 200
OWN = "hasten"
NUM_PER_CLIENT = 3


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the comparison: every repetition, by engine. `is_less_better`: latency, memory."""

    name: str
    unit: str
    samples: dict[str, list[float]]
    is_less_better: bool = False

    def median_of(self, engine: str) -> float:
        return median(self.samples[engine])

    def ratio(self, engine: str) -> float | None:
        """How many times as good this one is as the best of the others; None without any."""
        others = [self.median_of(name) for name in self.samples if name != engine]
        if engine not in self.samples or not others:
            return None
        own = self.median_of(engine)
        return min(others) / own if self.is_less_better else own / max(others)


Watch = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Comparison:
    """All measurements over some engines, `repeats` times each."""

    engines: Sequence[Engine]
    repeats: int
    prompts: Path | None
    watch: Watch

    def in_process(self) -> Iterator[Figure]:
        """Decoding and reading, then decoding beside a process that burns a core."""
        with ExitStack() as stack:
            workers = [stack.enter_context(engine.worker()) for engine in self.engines]
            for worker in workers:  # what is compiled or allocated at first use
                worker.seconds(max(STREAMS), 16, 4)
            for streams in STREAMS:
                decode = methodcaller("decode_tokens_per_s", streams)
                yield self._turns(f"decode, {_count(streams, 'stream')}", workers, decode)
            for length in PROMPT_LENS:
                read = methodcaller("prompt_tokens_per_s", length)
                yield self._turns(f"read a prompt of {length}", workers, read)
            with burner():
                name = "decode, 8 streams, beside a process that burns a core"
                yield self._turns(name, workers, methodcaller("decode_tokens_per_s", 8))

    def served(self) -> Iterator[Figure]:
        """Start, throughput and latency of the servers, and their memory after 16k tokens of KV."""
        with ExitStack() as stack:
            servers = {}
            for engine in self.engines:
                command = engine.server()
                if command is not None:
                    with served(command):  # fills the caches
                        pass
                    self.watch(f"start of {engine.name}")
                    servers[engine.name] = stack.enter_context(served(command))
            yield Figure(
                name="from the command to ready",
                unit="s",
                samples={name: [server.ready_s] for name, server in servers.items()},
                is_less_better=True,
            )
            throughput = [self._closed_loop(servers, clients) for clients in STREAMS]
            yield from (figure for pair in throughput for figure in pair)
            yield self._at_random(servers, throughput[-1][0])
            yield self._memory(servers)

    def speculating(self) -> Iterator[Figure]:
        """One client of this server as it comes, against each way in which others may speculate."""
        commands = {
            (engine.name, setting): command
            for engine in self.engines
            for setting, command in engine.speculating().items()
        }
        samples: dict[tuple[str, str], list[float]] = {key: [] for key in commands}
        with ExitStack() as stack:
            servers = {
                key: stack.enter_context(served(command)) for key, command in commands.items()
            }
            for i in range(self.repeats):
                self.watch(f"speculating, {i + 1} of {self.repeats}")
                for key, server in servers.items():
                    summary = self._load(server, i, output_len=SPECULATED_LEN)
                    samples[key].append(summary.output_tokens_per_s)
        own = {name: found for (name, _), found in samples.items() if name == OWN}
        for (name, setting), found in samples.items():
            if name != OWN:
                title = f"HTTP, one client, answers of {SPECULATED_LEN}, speculating ({setting})"
                yield Figure(name=title, unit="tokens/s", samples=own | {name: found})

    def _turns(
        self, name: str, workers: Sequence[Worker], measure: Callable[[Worker], float]
    ) -> Figure:
        samples: dict[str, list[float]] = {worker.name: [] for worker in workers}
        for i in range(self.repeats):
            self.watch(f"{name}, {i + 1} of {self.repeats}")
            for worker in workers:
                samples[worker.name].append(measure(worker))
        return Figure(name=name, unit="tokens/s", samples=samples)

    def _closed_loop(
        self, servers: dict[str, ServedProcess], clients: int
    ) -> tuple[Figure, Figure]:
        speed: dict[str, list[float]] = {name: [] for name in servers}
        first: dict[str, list[float]] = {name: [] for name in servers}
        title = f"HTTP, {_count(clients, 'client')}"
        for i in range(self.repeats):
            self.watch(f"{title}, {i + 1} of {self.repeats}")
            for name, server in servers.items():
                summary = self._load(server, i, concurrency=clients)
                speed[name].append(summary.output_tokens_per_s)
                first[name].append(summary.ttft_ms.p50)
        return (
            Figure(name=title, unit="tokens/s", samples=speed),
            Figure(name=f"{title}: first token", unit="ms", samples=first, is_less_better=True),
        )

    def _at_random(self, servers: dict[str, ServedProcess], capacity: Figure) -> Figure:
        """At 70 % of what the better of the other servers can do."""
        peers = [capacity.median_of(name) for name in servers if name != OWN]
        rate = POISSON_SHARE * max(peers or [capacity.median_of(OWN)]) / OUTPUT_LEN
        samples: dict[str, list[float]] = {name: [] for name in servers}
        for i in range(self.repeats):
            self.watch(f"HTTP at {rate:.2f} requests/s, {i + 1} of {self.repeats}")
            for name, server in servers.items():
                summary = self._load(server, i, request_rate=rate)
                samples[name].append(summary.itl_ms.p99)
        share = f"{POISSON_SHARE:.0%} of the others' best"
        title = f"HTTP, requests at random, {share}: between tokens, p99"
        return Figure(name=title, unit="ms", samples=samples, is_less_better=True)

    def _memory(self, servers: dict[str, ServedProcess]) -> Figure:
        """Of all processes, once 8 streams have filled 16k tokens of KV."""
        samples = {}
        for name, server in servers.items():
            per_stream = KV_TOKENS // 8 - OUTPUT_LEN - 64
            options = LoadOptions(
                num_requests=8, concurrency=8, input_len=per_stream, output_len=OUTPUT_LEN
            )
            run_bench_serve(server.url + "/v1", None, options, lambda _done, _total: None)
            samples[name] = [server.resident_bytes() / 1e6]
        title = "resident memory after 8 streams of 2k tokens"
        return Figure(name=title, unit="MB", samples=samples, is_less_better=True)

    def _load(
        self,
        server: ServedProcess,
        seed: int,
        concurrency: int = 1,
        request_rate: float | None = None,
        output_len: int = OUTPUT_LEN,
    ) -> LoadSummary:
        count = NUM_PER_CLIENT * (concurrency if request_rate is None else max(STREAMS))
        options = LoadOptions(
            num_requests=max(count, 8),
            concurrency=concurrency,
            request_rate=request_rate,
            prompts=None if self.prompts is None else str(self.prompts),
            input_len=86,
            output_len=output_len,
            load_seed=seed,
        )
        return run_bench_serve(server.url + "/v1", None, options, lambda _done, _total: None)


@contextmanager
def burner() -> Iterator[None]:
    """A process that takes all of a core that it gets."""
    process = subprocess.Popen((sys.executable, "-c", "while True: pass"))
    try:
        yield
    finally:
        process.kill()
        process.wait()


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
