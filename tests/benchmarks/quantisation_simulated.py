"""The schemes once more, simulated in torch on transformers' model: an independent opinion.

Nothing of the product's quantisers or kernels is used: weights are rounded here, inputs by hooks,
keys and values inside the attention function. All in fp32.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from hasten.core.loading import LoadedModel, load_model
from hasten.evals.distribution import FullDistribution

from tests.benchmarks.quantisation_quality import BASELINE, ROWS, Maker, Reader
from tests.helpers.embedded_oracle import transformers_model

Rounding = Callable[[torch.Tensor], torch.Tensor]


def simulated_makers() -> dict[str, Maker]:
    """The baseline (the same weights, nothing rounded), then every scheme."""
    model = load_model("embedded")
    return {
        BASELINE: lambda: reader(make_model(model)),
        "fp8": lambda: reader(with_linears(make_model(model), e4m3_rows, e4m3_rows_fp32)),
        "int8": lambda: reader(with_linears(make_model(model), int8_groups)),
        "int4": lambda: reader(with_linears(make_model(model), int4_groups)),
        "fp8 KV": lambda: reader(make_model(model, attention="rounded_kv")),
    }


def reader(theirs: Any) -> Reader:
    def read(ids: tuple[int, ...]) -> Iterator[FullDistribution]:
        with torch.inference_mode():
            hidden = theirs.model(torch.tensor([ids[:-1]])).last_hidden_state[0]
        for start in range(0, len(hidden), ROWS):
            with torch.inference_mode():
                logits = theirs.lm_head(hidden[start : start + ROWS]).numpy()
            yield FullDistribution.from_logits(logits, ids[1:][start : start + ROWS])

    return read


def make_model(model: LoadedModel, attention: str = "sdpa") -> Any:
    """transformers' Llama with the model's dequantised weights, rounded to bf16."""
    theirs = transformers_model(model)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.copy_(parameter.bfloat16())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import AttentionInterface

    AttentionInterface.register("rounded_kv", rounded_kv_attention)
    theirs.set_attn_implementation(attention)
    return theirs.eval()


def with_linears(theirs: Any, weights: Rounding, inputs: Rounding | None = None) -> Any:
    """Round the weights of all linears but the head, and what they read."""
    for name, module in theirs.named_modules():
        if isinstance(module, torch.nn.Linear) and name != "lm_head":
            module.weight.data = weights(module.weight.data)
            if inputs is not None:
                module.register_forward_pre_hook(lambda _, x, rounding=inputs: (rounding(x[0]),))
    return theirs


def e4m3_rows(x: torch.Tensor) -> torch.Tensor:
    """e4m3 with a bf16 scale per row."""
    return _e4m3(x, (x.abs().amax(-1, keepdim=True) / 448).bfloat16().float())


def e4m3_rows_fp32(x: torch.Tensor) -> torch.Tensor:
    """e4m3 with an fp32 scale per row."""
    return _e4m3(x, x.abs().amax(-1, keepdim=True) / 448)


def _e4m3(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    scale = torch.where(scale == 0, 1.0, scale)
    return (x / scale).clamp(-448, 448).to(torch.float8_e4m3fn).float() * scale


def int8_groups(x: torch.Tensor) -> torch.Tensor:
    """Symmetric, groups of 32, fp16 scales."""
    groups = x.view(*x.shape[:-1], -1, 32)
    scale = (groups.abs().amax(-1, keepdim=True) / 127).half().float()
    safe = torch.where(scale == 0, 1.0, scale)
    rounded: torch.Tensor = (groups / safe).round().clamp(-127, 127) * scale
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
    """Attention over keys and values in e4m3, a bf16 scale per token and head."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    attended, _ = sdpa_attention_forward(
        module, query, e4m3_rows(key), e4m3_rows(value), attention_mask, **others
    )
    return attended, None
