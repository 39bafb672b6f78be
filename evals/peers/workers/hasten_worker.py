"""Hasten in one process, as `hasten.api.LLM`."""

import sys

from hasten.api import LLM, SamplingParams
from protocol import Generate, answer_calls  # a neighbour: this file is run by its path


def load() -> Generate:
    llm = LLM(sys.argv[1], max_model_len=4096, max_num_seqs=32)

    def generate(prompts: list[list[int]], output_len: int) -> None:
        llm.generate(
            prompts, SamplingParams(max_tokens=output_len, temperature=0.0, ignore_eos=True)
        )

    return generate


if __name__ == "__main__":
    answer_calls(load)
