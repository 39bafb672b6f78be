"""What GPTQModel's own loader makes of a directory: argv[1] in, dense fp32 weights to argv[2]."""

from __future__ import annotations

import sys

import torch
from gptqmodel import BACKEND, GPTQModel
from safetensors.torch import save_file


def main() -> None:
    loaded = GPTQModel.load(
        sys.argv[1], device="cpu", backend=BACKEND.GPTQ_TORCH, dtype=torch.float16
    )
    weights = {
        f"{name}.weight": module.dequantize_weight().T.float().contiguous()
        for name, module in loaded.model.named_modules()
        if hasattr(module, "dequantize_weight")
    }
    save_file(weights, sys.argv[2])


if __name__ == "__main__":
    main()
