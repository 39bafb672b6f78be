"""What `hasten plan` is asked, as the command line shows it."""

from __future__ import annotations

from dataclasses import dataclass

from hasten.core.options import ConfigurationError, option
from hasten.core.planning.deployment import Deployment, Setting
from hasten.core.planning.devices import DEVICES, Device, find_device, parse_quantity
from hasten.core.planning.geometry import SCHEME_BITS, read_geometry


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """Device, precision and load."""

    gpu: str | None = option(None, f"device by name: {', '.join(DEVICES)}")
    memory: str | None = option(None, "memory of a device not in the list, as in 80GiB")
    bandwidth: str | None = option(None, "its memory bandwidth, as in 3.35TB/s")
    flops: str | None = option(None, "its dense bf16 peak, as in 989TFLOPS")
    kv_memory: str | None = option(None, "size of the KV pool, as in 54GiB; overrides the rest")
    quantization: str = option("bf16", "scheme of the linear layers", tuple(SCHEME_BITS))
    quantize_lm_head: bool = option(False, "the LM head in that scheme as well")
    kv_cache_dtype: str = option("bf16", "dtype of the KV cache", ("bf16", "fp8"))
    block_size: int = option(16, "tokens per block")
    gpu_memory_utilization: float = option(0.9, "share of the device's memory to use")
    max_model_len: int | None = option(None, "longest request, if not the model's own limit")
    mean_len: int | None = option(None, "mean length of requests, prompt and output")
    shared_prefix: int = option(0, "tokens that all requests begin with")
    max_num_batched_tokens: int = option(2048, "most tokens computed in one step")
    tpot_ms: float | None = option(None, "time per output token that must be kept")

    def __post_init__(self) -> None:
        for name in ("block_size", "mean_len", "max_model_len", "max_num_batched_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigurationError(f"--{name.replace('_', '-')} must be at least 1")
        if not 0 < self.gpu_memory_utilization <= 1:
            raise ConfigurationError("--gpu-memory-utilization must be in (0, 1]")
        if self.quantize_lm_head and self.quantization == "bf16":
            raise ConfigurationError("--quantize-lm-head says nothing without --quantization")
        if self.shared_prefix < 0:
            raise ConfigurationError("--shared-prefix must not be negative")
        if self.gpu is not None and self.memory is not None:
            raise ConfigurationError("give --gpu or --memory, not both")
        if self.memory is not None and (self.bandwidth is None or self.flops is None):
            raise ConfigurationError("--memory needs --bandwidth and --flops")

    @property
    def device(self) -> Device | None:
        """Raises ConfigurationError."""
        if self.gpu is not None:
            return find_device(self.gpu)
        if self.memory is None or self.bandwidth is None or self.flops is None:
            return None
        flops = parse_quantity("--flops", self.flops)
        return Device(
            name="given",
            memory_bytes=int(parse_quantity("--memory", self.memory)),
            bandwidth=parse_quantity("--bandwidth", self.bandwidth),
            bf16_flops=flops,
            fp8_flops=flops,
            source="command line",
        )

    def deployment(self, model: str) -> Deployment:
        """Raises LoadError and ConfigurationError."""
        kv_bytes = None
        if self.kv_memory is not None:
            kv_bytes = int(parse_quantity("--kv-memory", self.kv_memory))
        setting = Setting(
            scheme=self.quantization,
            quantize_lm_head=self.quantize_lm_head,
            kv_dtype=self.kv_cache_dtype,
            block_size=self.block_size,
            utilization=self.gpu_memory_utilization,
            max_model_len=self.max_model_len,
            mean_len=self.mean_len,
            shared_prefix_len=self.shared_prefix,
            max_num_batched_tokens=self.max_num_batched_tokens,
            kv_bytes=kv_bytes,
        )
        return Deployment(read_geometry(model), setting, self.device)
