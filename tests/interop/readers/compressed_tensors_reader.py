"""What compressed-tensors, through transformers, makes of a directory: argv[1] in, dense fp32
weights to argv[2]; its scales of the KV cache, if any, beside them.
"""

from __future__ import annotations

import sys

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM


def main() -> None:
    model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.bfloat16)
    with torch.inference_mode():
        model(torch.zeros(1, 4, dtype=torch.long))  # the first call decompresses
    weights = {
        name: tensor.detach().float().contiguous()
        for name, tensor in model.state_dict().items()
        if "proj.weight" in name or name.endswith(("k_scale", "v_scale"))
    }
    save_file({n: w for n, w in weights.items() if not n.endswith("weight_scale")}, sys.argv[2])


if __name__ == "__main__":
    main()
