"""What int8 activations cost on the native kernels: KL and more against bf16 activations.

    python -m tests.benchmarks.cpu_activations --tokens 32768

Same weights, same kernels, `--cpu-activations int8` against `bf16`; text and columns are those of
`quantisation_quality`. Exits with 1 when the mean KL exceeds 0.005 nats.
"""

from __future__ import annotations

import argparse
import sys

from hasten.core.options import EngineOptions, ExecutionOptions

from tests.benchmarks.quantisation_quality import BASELINE, Maker, measure, served

MAX_KL = 0.005
CANDIDATE = "int8 activations"


def maker(activations: str, num_threads: int | None) -> Maker:
    execution = ExecutionOptions("cpu", num_threads, activations)
    return served(EngineOptions(execution=execution))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tokens", type=int, default=32_768)
    parser.add_argument("--num-threads", type=int)
    asked = parser.parse_args()
    makers = {
        BASELINE: maker("bf16", asked.num_threads),
        CANDIDATE: maker("int8", asked.num_threads),
    }
    totals = measure(makers, asked.tokens, [])
    sys.exit(not totals[CANDIDATE].mean_kl <= MAX_KL)


if __name__ == "__main__":
    main()
