"""OpenVINO GenAI's continuous batching, int4."""

import sys

import numpy as np
import openvino as ov
import openvino_genai as genai
from protocol import Generate, answer_calls  # a neighbour: this file is run by its path


def load() -> Generate:
    scheduler = genai.SchedulerConfig()
    scheduler.max_num_seqs = 32
    scheduler.cache_size = 1
    pipeline = genai.ContinuousBatchingPipeline(sys.argv[1], scheduler, "CPU")

    def generate(prompts: list[list[int]], output_len: int) -> None:
        config = genai.GenerationConfig(max_new_tokens=output_len, ignore_eos=True)
        tensors = [ov.Tensor(np.array([ids], dtype=np.int64)) for ids in prompts]
        pipeline.generate(tensors, [config] * len(tensors))

    return generate


if __name__ == "__main__":
    answer_calls(load)
