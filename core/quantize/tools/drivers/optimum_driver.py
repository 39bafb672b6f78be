"""int4-gptq by Optimum, whose arithmetic is GPTQModel's."""

from __future__ import annotations

from optimum.gptq import GPTQQuantizer
from protocol import Job, Progress, compute_dtype, run_job, shrink_tables  # a neighbour
from transformers import AutoModelForCausalLM


def quantize(job: Job, progress: Progress) -> None:
    model = AutoModelForCausalLM.from_pretrained(job.model, dtype=compute_dtype())
    progress.follow(model.model.layers)
    quantizer = GPTQQuantizer(
        bits=4,
        group_size=job.group_size,
        sym=True,
        desc_act=False,
        dataset=[{"input_ids": [ids], "attention_mask": [[1] * len(ids)]} for ids in job.token_ids],
        model_seqlen=len(job.token_ids[0]),
        backend="gptq_torch",  # for packing; it would compile an extension to run the result with
    )
    model = quantizer.quantize_model(model)
    # It would write the calibration tokens into config.json, and the format that it computes in
    # there: `save` stores v1.
    quantizer.dataset = None
    model.config.quantization_config.update(dataset=None, format="gptq")
    shrink_tables(model)
    quantizer.save(model, job.out)


if __name__ == "__main__":
    run_job(quantize)
