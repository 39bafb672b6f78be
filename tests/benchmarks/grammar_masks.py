"""What grammars cost: steps of eight streams with masks and without, and masks alone.

    python tests/benchmarks/grammar_masks.py

Rounds with and without a grammar take turns in one engine, so that what else the machine does
meets both alike; medians are compared. Masks alone are timed on texts that follow their schemas.
"""

from __future__ import annotations

import json
import statistics
import time
from typing import Any

import numpy as np
from hasten.api.engine import build_engine
from hasten.api.structured.compiler import Vocabulary
from hasten.api.structured.json_schema import schema_grammar
from hasten.api.text.tokenizer import Tokenizer, load_tokenizer
from hasten.core.engine import Engine
from hasten.core.messages import AddRequest
from hasten.core.options import EngineOptions
from hasten.core.params import GenerationParams
from rich.console import Console

SHOW = Console(highlight=False).print
BATCH = 8
NUM_ROUNDS = 5
NUM_TOKENS = 200
PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 30}},
        "address": {
            "type": "object",
            "properties": {
                "street": {"type": "string"},
                "zip": {"type": "string", "pattern": "^[0-9]{5}$"},
            },
            "required": ["street", "zip"],
        },
    },
    "required": ["name", "age", "tags", "address"],
}
TEXTS: dict[str, tuple[Any, Any]] = {
    "person": (
        PERSON,
        {
            "name": "Ann of the hill",
            "age": 33,
            "tags": ["a dog", "two cats"],
            "address": {"street": "Long Street 1", "zip": "01234"},
        },
    ),
    "any object": ({"type": "object"}, {"a": {"b": [1, 2.5, "three", None]}, "c": "some text"}),
    "dates": (
        {"type": "array", "items": {"type": "string", "format": "date-time"}},
        ["2026-02-03T04:05:06Z", "2026-12-31T23:59:59.5+01:00"],
    ),
}


def steps_s(engine: Engine, tokenizer: Tokenizer, grammar: str, seed: int) -> list[float]:
    """Seconds of each decoding step of eight streams."""
    prompt = tokenizer.encode("Describe a person as JSON:\n")
    for i in range(BATCH):
        params = GenerationParams(
            max_tokens=NUM_TOKENS,
            seed=seed + i,
            eos_token_ids=engine.ready_message().eos_token_ids,
            ignore_eos=not grammar,
            grammar=grammar,
        )
        request = AddRequest(request_id=f"{seed}/{i}", prompt_token_ids=prompt, params=params)
        assert engine.add_request(request) is None
    seconds, num_running = [], BATCH
    while engine.has_work:
        begin = time.perf_counter()
        outputs = engine.step()
        if num_running == BATCH and len(outputs) == BATCH:
            seconds.append(time.perf_counter() - begin)
        num_running -= sum(output.finish_reason is not None for output in outputs)
    return seconds[1:]


def compare_steps(tokenizer: Tokenizer) -> None:
    engine = build_engine(EngineOptions())
    grammar = schema_grammar(PERSON)
    steps_s(engine, tokenizer, grammar, 0)
    medians: dict[str, list[float]] = {"without": [], "with": []}
    for round_idx in range(1, NUM_ROUNDS + 1):
        for name, wanted in (("without", ""), ("with", grammar)):
            seconds = steps_s(engine, tokenizer, wanted, 100 * round_idx)
            medians[name].append(statistics.median(seconds))
    ratios = [b / a for a, b in zip(medians["without"], medians["with"], strict=True)]
    for name, found in medians.items():
        SHOW(f"step of {BATCH} streams {name:>8} masks: {1e3 * statistics.median(found):6.2f} ms")
    SHOW(f"with / without, median of {NUM_ROUNDS} rounds: {statistics.median(ratios):.3f}")


def time_masks(tokenizer: Tokenizer) -> None:
    vocabulary = Vocabulary(tokenizer)
    mask = np.zeros(vocabulary.num_words, np.uint32)
    SHOW(f"{'schema':12} {'compile':>9} {'mask p50':>9} {'p95':>7} {'max':>7}   (us)")
    for name, (schema, value) in TEXTS.items():
        begin = time.perf_counter()
        matcher = vocabulary.matcher(schema_grammar(schema))
        compile_s = time.perf_counter() - begin
        seconds = []
        for token_id in tokenizer.encode(json.dumps(value)):
            begin = time.perf_counter()
            matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
            seconds.append(time.perf_counter() - begin)
            assert matcher.try_consume_tokens([token_id]) == 1
        p50, p95, most = np.quantile(seconds, [0.5, 0.95, 1.0]) * 1e6
        SHOW(f"{name:12} {1e6 * compile_s:9.0f} {p50:9.0f} {p95:7.0f} {most:7.0f}")


def main() -> None:
    tokenizer = load_tokenizer("embedded")
    time_masks(tokenizer)
    compare_steps(tokenizer)


if __name__ == "__main__":
    main()
