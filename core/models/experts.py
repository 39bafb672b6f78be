"""A mixture of experts as ops: route, the experts' gate | up, activation, down, and the sum.

    router -> route: for each token, `num_active` expert ids and their weights
    x -> grouped_linear -> gate | up of each active expert -> act_mul
      -> grouped_linear -> one row of outputs per active expert -> combine_experts

Exercised by `pytest tests/cpu/models -k moe`.
"""

from __future__ import annotations

from hasten.core.models.config import DecoderConfig
from hasten.core.models.weights import layer_weight
from hasten.kernels.dtypes import DType
from hasten.kernels.ops import ActMul, CombineExperts, GroupedLinear, Linear, Route
from hasten.kernels.program import Buffer, Program, Rows


def record_experts(
    program: Program, config: DecoderConfig, layer_idx: int, x: Buffer, out: Buffer
) -> None:
    """Record the mixture of one layer, from `x` to `out`, both [T, hidden]."""
    experts = config.experts
    assert experts is not None
    count, active = experts.num_experts, experts.num_active

    def buffer(name: str, width: int, dtype: DType = x.dtype) -> Buffer:
        return program.shared_buffer(name, Rows.TOKENS, width, dtype)

    logits = buffer("router_logits", count, DType.F32)
    routing = buffer("routing", 2 * active, DType.F32)
    gate_up = buffer("gate_up", 2 * active * experts.intermediate_size)
    mlp = buffer("mlp", active * experts.intermediate_size)
    outputs = buffer("expert_outputs", active * out.width)
    program.add(Linear(x, layer_weight(layer_idx, "router"), logits))
    program.add(Route(logits, routing, active, experts.renormalize))
    gate_up_weight = layer_weight(layer_idx, "expert_gate_up")
    program.add(GroupedLinear(x, routing, gate_up_weight, gate_up, count, active, num_parts=2))
    program.add(ActMul(gate_up, mlp, config.activation))
    down_weight = layer_weight(layer_idx, "expert_down")
    program.add(GroupedLinear(mlp, routing, down_weight, outputs, count, active))
    program.add(CombineExperts(outputs, routing, out))
