"""int4-awq by AutoAWQ."""

from __future__ import annotations

from typing import Any

from awq import AutoAWQForCausalLM
from awq.quantize.quantizer import AwqQuantizer
from protocol import Job, Progress, compute_dtype, run_job, shrink_tables  # a neighbour


class RestoringQuantizer(AwqQuantizer):  # type: ignore[misc]  # the tool has no annotations here
    """AutoAWQ's, made to work on a CPU.

    Its search keeps `v.cpu()` of the weights to restore them after every try. On a CPU that is no
    copy: tries pile up, and the result is garbage without an error. Here it gets copies to keep.
    """

    def _compute_best_scale(self, x: Any, w_mean: Any, x_mean: Any, inspected: Any, *rest: Any):  # type: ignore[no-untyped-def]  # noqa: ANN202  as the tool's
        state_dict = inspected.state_dict
        inspected.state_dict = lambda: {name: v.clone() for name, v in state_dict().items()}
        try:
            return super()._compute_best_scale(x, w_mean, x_mean, inspected, *rest)
        finally:
            del inspected.state_dict


def quantize(job: Job, progress: Progress) -> None:
    model = AutoAWQForCausalLM.from_pretrained(
        job.model, torch_dtype=compute_dtype(), device_map=None, safetensors=True
    )
    progress.follow(model.model.model.layers)
    model.quantize(
        tokenizer=None,
        quant_config={
            "zero_point": True,
            "q_group_size": job.group_size,
            "w_bit": 4,
            "version": "GEMM",
        },
        calib_data=job.token_ids,
        max_calib_samples=len(job.token_ids),
        max_calib_seq_len=len(job.token_ids[0]),
        n_parallel_calib_samples=4,
        quantizer_cls=RestoringQuantizer,
    )
    shrink_tables(model.model)
    model.save_quantized(job.out)


if __name__ == "__main__":
    run_job(quantize)
