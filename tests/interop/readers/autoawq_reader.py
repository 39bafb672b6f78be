"""What AutoAWQ's own loader makes of a directory: argv[1] in, dense fp32 weights to argv[2]."""

from __future__ import annotations

import sys

from awq import AutoAWQForCausalLM
from awq.models import base
from awq.modules.linear import WQLinear_GEMM
from awq.utils.packing_utils import dequantize_gemm
from safetensors.torch import save_file


def main() -> None:
    # On a CPU it wants an extension for Intel's kernels, which is no longer made.
    base.get_best_device = lambda: "anything else"
    loaded = AutoAWQForCausalLM.from_quantized(
        sys.argv[1], fuse_layers=False, device_map={"": "cpu"}
    )
    weights = {}
    for name, module in loaded.model.named_modules():
        if isinstance(module, WQLinear_GEMM):
            dense = dequantize_gemm(
                module.qweight, module.qzeros, module.scales.float(), 4, module.group_size
            )
            weights[f"{name}.weight"] = dense.T.contiguous()
    save_file(weights, sys.argv[2])


if __name__ == "__main__":
    main()
