"""Every scheme by LLM Compressor."""

from __future__ import annotations

from typing import Any

import torch
from datasets import Dataset
from llmcompressor import oneshot
from llmcompressor.modifiers.quantization import GPTQModifier, QuantizationModifier
from llmcompressor.modifiers.transform.awq import AWQModifier
from llmcompressor.pipelines.cache import IntermediatesCache
from protocol import Job, Progress, compute_dtype, run_job, shrink_tables  # a neighbour
from transformers import AutoModelForCausalLM

FP8 = {"num_bits": 8, "type": "float", "symmetric": True}


def scheme(job: Job) -> dict[str, Any]:
    """The tool's arguments for weights and activations."""
    if job.scheme == "fp8" and job.activations == "static":
        tensor = {**FP8, "strategy": "tensor"}
        return {"weights": tensor, "input_activations": {**tensor, "dynamic": False}}
    if job.scheme == "fp8":
        inputs = {**FP8, "strategy": "token", "dynamic": True}
        return {"weights": {**FP8, "strategy": "channel"}, "input_activations": inputs}
    weights = {
        "num_bits": 8 if job.scheme == "int8" else 4,
        "type": "int",
        "symmetric": job.scheme in ("int8", "int4-gptq"),
        "strategy": "group",
        "group_size": job.group_size,
    }
    return {"weights": weights}


def recipe(job: Job) -> list[Any]:
    kv_cache = None
    if job.kv_cache is not None:
        kv_cache = {**FP8, "strategy": "tensor", "dynamic": False}
    arguments = {
        "config_groups": {"group_0": {"targets": ["Linear"], **scheme(job)}},
        "ignore": ["lm_head"],
        "kv_cache_scheme": kv_cache,
    }
    if job.scheme == "int4-gptq":
        return [GPTQModifier(**arguments)]
    quantized = QuantizationModifier(**arguments)
    return [AWQModifier(), quantized] if job.scheme == "int4-awq" else [quantized]


def quantize(job: Job, progress: Progress) -> None:
    if not torch.cuda.is_available():
        # Pinned memory is for copies to a device; without one the call fails.
        IntermediatesCache.pin_memory = lambda *_: None
    model = AutoModelForCausalLM.from_pretrained(job.model, dtype=compute_dtype())
    progress.follow(model.model.layers)
    ids = Dataset.from_dict({"input_ids": job.token_ids})
    oneshot(
        model=model,
        recipe=recipe(job),
        dataset=ids,
        max_seq_length=len(job.token_ids[0]),
        num_calibration_samples=len(job.token_ids),
        shuffle_calibration_samples=False,
    )
    shrink_tables(model)
    model.save_pretrained(job.out, save_compressed=True)


if __name__ == "__main__":
    run_job(quantize)
