"""How a worker is spoken to: one JSON object a line, in and out. Standard library only.

In: streams, prompt_len, output_len, seed. Out: seconds from the call to its end. Prompts are
pseudo-random token ids that differ with the seed, so that no cache of prefixes helps anybody.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Callable

Generate = Callable[[list[list[int]], int], float | None]
"""Runs all prompts at once, greedily, to exactly so many tokens each. May say itself how many
seconds that took, where starting is part of each call.
"""


def prompts_of(streams: int, prompt_len: int, seed: int) -> list[list[int]]:
    """Token ids away from the special ones at the beginning of a vocabulary."""
    source = random.Random(seed)  # noqa: S311  not a secret
    return [[source.randrange(1000, 40_000) for _ in range(prompt_len)] for _ in range(streams)]


def answer_calls(load: Callable[[], Generate]) -> None:
    """Load an engine and answer until the input ends. What it prints goes to standard error."""
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    generate = load()
    replies.write("ready\n")
    for line in sys.stdin:
        call = json.loads(line)
        prompts = prompts_of(call["streams"], call["prompt_len"], call["seed"])
        begin_s = time.perf_counter()
        own_s = generate(prompts, call["output_len"])
        seconds = time.perf_counter() - begin_s if own_s is None else own_s
        replies.write(json.dumps({"seconds": seconds}) + "\n")
