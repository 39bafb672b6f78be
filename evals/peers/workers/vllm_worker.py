"""vLLM in one process, bf16."""

import sys

from protocol import answer_calls  # a neighbour: this file is run by its path
from vllm import LLM, SamplingParams


def main() -> None:
    llm = LLM(sys.argv[1], dtype="bfloat16", max_model_len=4096, max_num_seqs=32)

    def generate(prompts: list[list[int]], output_len: int) -> None:
        params = SamplingParams(max_tokens=output_len, temperature=0.0, ignore_eos=True)
        llm.generate([{"prompt_token_ids": ids} for ids in prompts], params, use_tqdm=False)

    answer_calls(generate)


if __name__ == "__main__":
    main()
