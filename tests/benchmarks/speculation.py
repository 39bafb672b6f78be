"""What speculation costs and gains on this machine: ratios to none, from interleaved runs.

    python tests/benchmarks/speculation.py --concurrency 1 8 32 --prompts chat random --repeats 7

Each repeat takes other prompts and runs every configuration on them once, in an order that rotates;
the first is `off`. A ratio is between runs of one repeat, and the median of those is reported with
its range. Chat prompts are those of $HASTEN_DATA/data/chat/spec_bench_half.jsonl; `copy` prompts
ask to repeat a list; `random` ones are random tokens, sampled at temperature 1, which nothing can
guess. On a machine that others use too, `--num-threads 1 --clock cpu` counts this process alone.
"""

from __future__ import annotations

import argparse
import json
import os
import random
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle, islice
from pathlib import Path
from statistics import median
from time import perf_counter, process_time

from hasten.api.engine import build_engine
from hasten.api.text_model import template_of, tokenizer_of
from hasten.core.engine import Engine
from hasten.core.messages import AddRequest
from hasten.core.options import (
    CacheOptions,
    EngineOptions,
    ExecutionOptions,
    ModelOptions,
    SpeculationOptions,
)
from hasten.core.params import GenerationParams

DATA = Path(os.environ.get("HASTEN_DATA", Path(__file__).parents[3] / "shared"))
CLOCKS: dict[str, Callable[[], float]] = {"wall": perf_counter, "cpu": process_time}
NAMES = ["Ann", "Bob", "Cid", "Dee", "Eve", "Fay", "Gus", "Hal", "Ida", "Jon", "Kim", "Lea"]


def options_of(configuration: str, kernels: str, num_threads: int | None) -> EngineOptions:
    """`off`, or METHOD:DEPTH."""
    method, _, depth = configuration.partition(":")
    return EngineOptions(
        model=ModelOptions(max_model_len=2048),
        cache=CacheOptions(kv_cache_memory_bytes=512 * 2**20, enable_prefix_caching=False),
        execution=ExecutionOptions(kernels=kernels, num_threads=num_threads),
        speculation=SpeculationOptions(method, depth or "auto"),
    )


def prompts_of(kind: str, options: EngineOptions) -> Iterator[list[int]]:
    """Prompts without end."""
    rng, tokenizer = random.Random(1), tokenizer_of(options)
    template = template_of(options, tokenizer)
    assert template is not None

    def chat(text: str) -> list[int]:
        rendered = template.render([{"role": "user", "content": text}])
        return tokenizer.encode(rendered, add_special_tokens=False)

    if kind == "random":
        while True:
            yield [rng.randrange(100, 49000) for _ in range(64)]
    if kind == "copy":
        while True:
            lines = [f"{rng.choice(NAMES)}, {rng.randrange(1000)} Main Street" for _ in range(12)]
            yield chat("Repeat these lines exactly:\n" + "\n".join(lines))
    lines = (DATA / "data/chat/spec_bench_half.jsonl").read_text().splitlines()
    turns = [json.loads(line)["turns"] for line in rng.sample(lines, len(lines))]
    texts = [json.loads(turn)[0] if isinstance(turn, str) else turn[0] for turn in turns]
    prompts = [chat(text) for text in texts]
    yield from cycle([prompt for prompt in prompts if len(prompt) < 800])


def tokens_per_second(
    engine: Engine,
    prompts: Sequence[list[int]],
    params: GenerationParams,
    clock: Callable[[], float],
) -> float:
    """Of decoding: from the step that ends the last prompt on."""
    for i, prompt in enumerate(prompts):
        refused = engine.add_request(
            AddRequest(request_id=str(i), prompt_token_ids=prompt, params=params)
        )
        assert refused is None, refused
    num_started = num_tokens = 0
    begin = clock()
    while engine.has_work:
        outputs = engine.step()
        if num_started < len(prompts):
            num_started += sum(1 for output in outputs if output.token_ids)
            begin, num_tokens = clock(), 0
        else:
            num_tokens += sum(len(output.token_ids) for output in outputs)
    return num_tokens / (clock() - begin)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kernels", default="auto")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--prompts", nargs="+", default=["chat", "copy", "random"])
    parser.add_argument("--configurations", nargs="+", default=["ngram", "suffix", "auto"])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--max-tokens", type=int, default=100)
    parser.add_argument("--num-threads", type=int)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    args = parser.parse_args()
    configurations = ["off", *args.configurations]
    options = {name: options_of(name, args.kernels, args.num_threads) for name in configurations}
    engines = {name: build_engine(each) for name, each in options.items()}
    for kind in args.prompts:
        prompts = prompts_of(kind, options["off"])
        is_random = kind == "random"
        params = GenerationParams(
            max_tokens=args.max_tokens,
            seed=1,
            temperature=1.0 if is_random else 0.0,
            ignore_eos=is_random,
            eos_token_ids=engines["off"].ready_message().eos_token_ids,
        )
        for concurrency in args.concurrency:
            rates: dict[str, list[float]] = {name: [] for name in configurations}
            for repeat in range(args.repeats):
                batch = list(islice(prompts, concurrency))
                shift = repeat % len(configurations)
                for name in configurations[shift:] + configurations[:shift]:
                    rates[name].append(
                        tokens_per_second(engines[name], batch, params, CLOCKS[args.clock])
                    )
            report(kind, concurrency, rates, engines)


def report(
    kind: str, concurrency: int, rates: dict[str, list[float]], engines: dict[str, Engine]
) -> None:
    print(f"{kind:7} x{concurrency:<3} off {median(rates['off']):7.0f} tokens/s", end="")  # noqa: T201  a command's output
    for name, values in rates.items():
        if name == "off":
            continue
        ratios = sorted(a / b for a, b in zip(values, rates["off"], strict=True))
        stats = engines[name].stats()
        accepted = stats.num_accepted_draft_tokens / max(stats.num_draft_tokens, 1)
        print(  # noqa: T201  a command's output
            f"  {name} {median(ratios):.2f} ({ratios[0]:.2f}..{ratios[-1]:.2f}, "
            f"{accepted:.0%} accepted so far)",
            end="",
        )
    print(flush=True)  # noqa: T201  a command's output


if __name__ == "__main__":
    main()
