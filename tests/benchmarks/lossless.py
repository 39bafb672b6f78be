"""Speculation changes nothing: 200 prompts, every method, depths 1, 3, 8 and auto, bit for bit.

    .venv/bin/python -m tests.benchmarks.lossless [--prompts 200] [--max-tokens 40]

Temperatures 0, 0.7 and 1.0 with penalties, bias, min_p, stops and log-probabilities in the mix, on
the embedded model with its shipped head: token ids and log-probabilities against those without
speculation; once more in small chunks without a prefix cache, and with too little memory for all.
Exit status 1 if anything differs. `tests/cpu/spec/test_lossless.py` is its small form.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Sequence
from dataclasses import replace

from hasten.api.engine import build_engine
from hasten.api.text_model import template_of, tokenizer_of
from hasten.core.messages import AddRequest
from hasten.core.options import (
    CacheOptions,
    EngineOptions,
    ModelOptions,
    SchedulerOptions,
    SpeculationOptions,
)
from hasten.spec.training.prompts import built_in_prompts

from tests.cpu.spec.test_lossless import params_mix
from tests.helpers.engines import Answers, ask, expect_short_outputs, run_requests

VOCAB_SIZE = 49152
METHODS = ("ngram", "suffix", "eagle", "auto")
DEPTHS = ("1", "3", "8", "auto")
PLAIN = EngineOptions(
    model=ModelOptions(max_model_len=512),
    cache=CacheOptions(kv_cache_memory_bytes=400_000_000),
    scheduler=SchedulerOptions(max_num_seqs=32),
)
IN_CHUNKS = replace(
    PLAIN,
    cache=replace(PLAIN.cache, enable_prefix_caching=False),
    scheduler=replace(PLAIN.scheduler, max_num_batched_tokens=48),
)
LITTLE = 30_000_000
IN_LITTLE_MEMORY = replace(PLAIN, cache=replace(PLAIN.cache, kv_cache_memory_bytes=LITTLE))


def requests_of(num_prompts: int, max_tokens: int) -> list[AddRequest]:
    rng, tokenizer = random.Random(7), tokenizer_of(PLAIN)
    template = template_of(PLAIN, tokenizer)
    assert template is not None
    prompts = [
        tokenizer.encode(template.render([{"role": "user", "content": text}]))
        for text in built_in_prompts(seed=7)[:num_prompts]
    ]
    return [
        ask(str(i), prompt, params_mix(rng, VOCAB_SIZE, max_tokens))
        for i, prompt in enumerate(prompts)
    ]


def answers(options: EngineOptions, requests: Sequence[AddRequest]) -> tuple[Answers, str]:
    """What an engine of these options answers, and what it did for that."""
    engine = build_engine(options)
    if options.cache.kv_cache_memory_bytes == LITTLE:
        expect_short_outputs(engine)
    found = run_requests(engine, list(requests))
    stats = engine.stats()
    assert stats.num_free_blocks == stats.num_total_blocks
    return found, (
        f"{stats.num_accepted_draft_tokens} of {stats.num_draft_tokens} drafts right, "
        f"{stats.num_preemptions} preemptions"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--max-tokens", type=int, default=40)
    given = parser.parse_args()
    requests = requests_of(given.prompts, given.max_tokens)
    expected, _ = answers(PLAIN, requests)
    cases = [("", PLAIN, method, depth) for method in METHODS for depth in DEPTHS]
    cases += [
        (", in chunks", IN_CHUNKS, "auto", "3"),
        (", in little memory", IN_LITTLE_MEMORY, "auto", "3"),
    ]
    num_different = 0
    for how, options, method, depth in cases:
        speculation = SpeculationOptions(method, depth)
        found, told = answers(replace(options, speculation=speculation), requests)
        different = [key for key, answer in expected.items() if found[key].text != answer.text]
        num_different += len(different)
        line = f"{method} {depth}{how}: {len(different)} of {len(expected)} answers differ"
        sys.stdout.write(f"{line}; {told}\n")
        sys.stdout.flush()
    sys.exit(num_different > 0)


if __name__ == "__main__":
    main()
