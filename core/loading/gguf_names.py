"""Between the tensor names of GGUF files and those of Hugging Face checkpoints.

`blk.3.attn_q.weight` is `model.layers.3.self_attn.q_proj.weight`. The experts of a layer lie in one
tensor, `blk.3.ffn_gate_exps.weight`; in checkpoints each has its own.
Exercised by `pytest tests/unit/loading/test_gguf.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from hasten.core.models.config import DecoderConfig, Experts
from hasten.core.models.weights import BLOCK_NORMS

_LAYER_NAME = re.compile(r"blk\.(0|[1-9]\d{0,5})\.(.+)\.(weight|bias)")
_LAYER_KEY = re.compile(r"model\.layers\.(\d+)\.(.+)\.(weight|bias)")
_EXPERT_MODULE = re.compile(r"(.+)\.experts\.\d+\.(.+)")

_TOP_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_NORMS = {
    "input_norm": "attn_norm",
    "post_attention_norm": "post_attention_norm",
    "mlp_norm": "ffn_norm",
    "post_mlp_norm": "post_ffw_norm",
}
_ATTENTION = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
}
_MLP = {
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_FUSED = {
    "attn_qkv": "self_attn.qkv_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_up": "mlp.gate_up_proj",
    "ffn_down": "mlp.down_proj",
}


@dataclass(frozen=True, slots=True)
class TensorNames:
    """The names of one model, both ways. `experts` are modules of all experts in one tensor."""

    modules: dict[str, str]
    experts: dict[str, tuple[str, str]]  # the block's module, and the module within an expert

    @classmethod
    def of(cls, config: DecoderConfig) -> TensorNames:
        norms = BLOCK_NORMS[config.norms].items()
        modules = {_NORMS[name]: module for name, module in norms}
        modules |= _FUSED if config.fused_projections else {**_ATTENTION, **_MLP}
        return cls(
            modules, {} if config.experts is None else _expert_modules(config.experts, modules)
        )

    def checkpoint_keys(self, name: str, num_experts: int) -> Iterator[str]:
        """The Hugging Face names of a tensor: one, or that of each expert's share.

        Unknown names stay as they are.
        """
        match = _LAYER_NAME.fullmatch(name)
        if match is None:
            yield _TOP_NAMES.get(name, name)
        elif match[2] in self.experts:
            block, module = self.experts[match[2]]
            for idx in range(num_experts):
                yield f"model.layers.{int(match[1])}.{block}.experts.{idx}.{module}.{match[3]}"
        elif match[2] in self.modules:
            yield f"model.layers.{int(match[1])}.{self.modules[match[2]]}.{match[3]}"
        else:
            yield name

    def gguf_name(self, key: str) -> str:
        """The tensor that holds what checkpoints call `key`."""
        match = _LAYER_KEY.fullmatch(key)
        if match is None:
            return {module: name for name, module in _TOP_NAMES.items()}.get(key, key)
        expert = _EXPERT_MODULE.fullmatch(match[2])
        wanted = match[2] if expert is None else (expert[1], expert[2])
        names: dict[object, str] = {module: name for name, module in self.modules.items()}
        names |= {module: name for name, module in self.experts.items()}
        return f"blk.{match[1]}.{names[wanted]}.{match[3]}" if wanted in names else key


def _expert_modules(experts: Experts, modules: dict[str, str]) -> dict[str, tuple[str, str]]:
    """Also replaces the dense MLP among `modules` by the router."""
    block, gate, up, down = experts.tensor_names
    for name in _MLP:
        del modules[name]
    modules["ffn_gate_inp"] = f"{block}.gate"
    found = {"ffn_gate_exps": gate, "ffn_up_exps": up, "ffn_down_exps": down}
    return {name: (block, module) for name, module in found.items()}
