"""The schemes once more, simulated in torch on transformers' model: an independent opinion.

Nothing of the product's quantisers, formats or kernels is used: weights are rounded or decoded
here, inputs in the linears, keys and values inside the attention function. Activations are bf16
between the linears, as where the model is served; products of rounded numbers are summed in fp32.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from hasten.evals.distribution import FullDistribution

from tests.benchmarks.independent_decoders import decode_folder
from tests.benchmarks.quantisation_quality import BASELINE, FP8_KV, ROWS, Maker, Reader

Rounding = Callable[[torch.Tensor], torch.Tensor]


def simulated_makers(folder: Path, checkpoints: dict[str, str], kernels: str) -> dict[str, Maker]:
    """The baseline in `folder` (bf16, nothing rounded), then every scheme.

    The `cpu` kernels round the inputs of integer weights, and not those of fp8 ones; the others
    the other way about.
    """
    inputs, fp8_inputs = (int8_inputs, unchanged) if kernels == "cpu" else (unchanged, e4m3_inputs)
    return {
        BASELINE: lambda: reader(make_model(folder)),
        "fp8": lambda: reader(with_linears(make_model(folder), e4m3_rows, fp8_inputs)),
        "int8": lambda: reader(with_linears(make_model(folder), int8_groups, inputs)),
        "int4": lambda: reader(with_linears(make_model(folder), int4_groups, inputs)),
        FP8_KV: lambda: reader(make_model(folder, attention="rounded_kv")),
        **{
            name: lambda made=Path(made): reader(with_checkpoint(make_model(folder), made, inputs))  # type: ignore[misc]  # a default binds the loop's variable
            for name, made in checkpoints.items()
        },
    }


def reader(theirs: Any) -> Reader:
    def read(ids: tuple[int, ...]) -> Iterator[FullDistribution]:
        with torch.inference_mode():
            hidden = theirs.model(torch.tensor([ids[:-1]])).last_hidden_state[0]
        for start in range(0, len(hidden), ROWS):
            with torch.inference_mode():
                logits = theirs.lm_head(hidden[start : start + ROWS]).float().numpy()
            yield FullDistribution.from_logits(logits, ids[1:][start : start + ROWS])

    return read


def make_model(folder: Path, attention: str = "sdpa") -> Any:
    """transformers' own reading of a bf16 directory."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import AttentionInterface, AutoModelForCausalLM

        AttentionInterface.register("rounded_kv", rounded_kv_attention)
        model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    model.set_attn_implementation(attention)
    return model.eval()


def with_linears(theirs: Any, weights: Rounding, inputs: Rounding) -> Any:
    """Round the weights of all linears but the head, and what they read."""
    for name, module in theirs.named_modules():
        if isinstance(module, torch.nn.Linear) and name != "lm_head":
            compute_with(module, weights(module.weight.data.float()), inputs)
    return theirs


def with_checkpoint(theirs: Any, made: Path, inputs: Rounding) -> Any:
    """Give the model a checkpoint's weights; what quantised linears read is rounded."""
    decoded = decode_folder(made)
    modules = dict(theirs.named_modules())
    for name, tensor in decoded.state.items():
        linear = name.removesuffix(".weight")
        if linear in decoded.quantized:
            compute_with(modules[linear], tensor, inputs)
        else:
            theirs.get_parameter(name).data.copy_(tensor)
    return theirs


def compute_with(module: torch.nn.Linear, weight: torch.Tensor, inputs: Rounding) -> None:
    """Have the module multiply rounded inputs and these weights in fp32."""

    def forward(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(inputs(x.float()), weight, module.bias).to(x.dtype)

    module.forward = forward  # type: ignore[assignment,method-assign]  # as simulations do


def unchanged(x: torch.Tensor) -> torch.Tensor:
    return x


def e4m3_rows(x: torch.Tensor) -> torch.Tensor:
    """e4m3 with a bf16 scale per row."""
    return _e4m3(x, (x.abs().amax(-1, keepdim=True) / 448).bfloat16().float())


def e4m3_inputs(x: torch.Tensor) -> torch.Tensor:
    """e4m3 with an fp32 scale per row."""
    return _e4m3(x, x.abs().amax(-1, keepdim=True) / 448)


def _e4m3(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    scale = torch.where(scale == 0, 1.0, scale)
    return (x / scale).clamp(-448, 448).to(torch.float8_e4m3fn).float() * scale


def int8_groups(x: torch.Tensor) -> torch.Tensor:
    """Symmetric, groups of 32, fp16 scales."""
    return _symmetric(x, 127, torch.float16)


def int8_inputs(x: torch.Tensor) -> torch.Tensor:
    """Symmetric, groups of 32 in steps of a 120th of the largest, fp32 scales."""
    return _symmetric(x, 120, torch.float32)


def _symmetric(x: torch.Tensor, largest: int, scale_dtype: torch.dtype) -> torch.Tensor:
    groups = x.view(*x.shape[:-1], -1, 32)
    scale = (groups.abs().amax(-1, keepdim=True) / largest).to(scale_dtype).float()
    safe = torch.where(scale == 0, 1.0, scale)
    rounded: torch.Tensor = (groups / safe).round().clamp(-largest, largest) * scale
    return rounded.flatten(-2)


def int4_groups(x: torch.Tensor) -> torch.Tensor:
    """Asymmetric, groups of 64, fp16 scales and minima."""
    groups = x.view(*x.shape[:-1], -1, 64)
    low = groups.amin(-1, keepdim=True).half().float()
    scale = ((groups - low).amax(-1, keepdim=True) / 15).half().float()
    safe = torch.where(scale == 0, 1.0, scale)
    rounded: torch.Tensor = ((groups - low) / safe).round().clamp(0, 15) * scale + low
    return rounded.flatten(-2)


def rounded_kv_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Attention in fp32 over keys and values in e4m3, a bf16 scale per token and head."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    attended, _ = sdpa_attention_forward(
        module,
        query.float(),
        e4m3_rows(key.float()),
        e4m3_rows(value.float()),
        attention_mask,
        **others,
    )
    return attended.to(query.dtype), None
