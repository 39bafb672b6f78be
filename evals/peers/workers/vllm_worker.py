"""vLLM in one process, bf16."""

import sys

from protocol import Generate, answer_calls  # a neighbour: this file is run by its path
from vllm import LLM, SamplingParams


def load() -> Generate:
    llm = LLM(
        sys.argv[1],
        dtype="bfloat16",
        max_model_len=4096,
        max_num_seqs=32,
        gpu_memory_utilization=0.3,  # of the machine's memory; more may not be free
    )

    def generate(prompts: list[list[int]], output_len: int) -> None:
        params = SamplingParams(max_tokens=output_len, temperature=0.0, ignore_eos=True)
        llm.generate([{"prompt_token_ids": ids} for ids in prompts], params, use_tqdm=False)

    return generate


if __name__ == "__main__":
    answer_calls(load)
