"""How tight memory is best filled: what lets requests in, and what that costs. Not a test:

    python -m tests.unit.core.bench_admission

Pools of 60 % of demand. For each workload (see `workloads`) and way of deciding who comes in, over
a few seeds: the worst share of computed tokens that were computed again, the mean number of steps
against an ample pool, and the mean number of requests running. Demand is either what all requests
fill at their ends ("sum"), or the most that an ample pool ever holds at once ("peak").
"""

from __future__ import annotations

import random
import sys
from statistics import mean

from hasten.core.forecast import Forecast

from tests.unit.core.simulation import FullLength, Optimist
from tests.unit.core.workloads import (
    WORKLOADS,
    ample,
    full_demand,
    pool_of_60_percent,
    serve,
)

NUM_SEEDS = 4
BLOCK_SIZE = 16
WAYS = {"a block each": Optimist, "full length": FullLength, "forecast": Forecast}


def compare(workload: str, demand: str) -> str:
    """One row: by way of deciding, recomputed share and steps against an ample pool."""
    shares: dict[str, list[float]] = {name: [] for name in WAYS}
    steps: dict[str, list[float]] = {name: [] for name in WAYS}
    for seed in range(NUM_SEEDS):
        wishes = WORKLOADS[workload](random.Random(seed))
        roomy = ample(wishes, BLOCK_SIZE)
        wanted = full_demand(wishes, BLOCK_SIZE) if demand == "sum" else roomy.peak_blocks
        pool = pool_of_60_percent(wishes, BLOCK_SIZE, wanted)
        for name, way in WAYS.items():
            served = serve(wishes, pool, BLOCK_SIZE, way)
            shares[name].append(served.recomputed_share)
            steps[name].append(served.num_steps / roomy.num_steps)
    cells = (f"{max(shares[name]):6.1%} {mean(steps[name]):5.2f}x" for name in WAYS)
    return f"{workload:24}{demand:5}" + "".join(f"{cell:>16}" for cell in cells)


def main() -> None:
    sys.stdout.write(f"{'':29}" + "".join(f"{name:>16}" for name in WAYS) + "\n")
    for workload in WORKLOADS:
        for demand in ("sum", "peak"):
            sys.stdout.write(compare(workload, demand) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
