"""What a model on a device amounts to: what fits, and the roofline of its speed.

    device memory x utilisation = weights + activations + overhead + KV pool

Speeds are ideal: a step takes as long as the slower of moving its bytes and doing its arithmetic,
nothing else. Real ones are below; the order between configurations holds. Pure. Exercised by
`pytest tests/unit/planning`, and by hand: `hasten plan embedded --memory 8GiB --bandwidth 50GB/s`.
"""

from __future__ import annotations

from dataclasses import dataclass

from hasten.core.options import ConfigurationError
from hasten.core.planning.devices import GIB, Device
from hasten.core.planning.geometry import Geometry

FRAMEWORK_BYTES = GIB
"""What a GPU's context, its libraries and captured graphs take, whatever the model."""
LOGIT_ROWS = 256
"""Rows of fp32 logits that a program has room for."""
DRAFTS = 3
"""Drafts per request that the break-even of speculation is stated for."""


@dataclass(frozen=True, slots=True)
class Setting:
    """How the model is to be served."""

    scheme: str = "bf16"
    quantize_lm_head: bool = False
    kv_dtype: str = "bf16"
    block_size: int = 16
    utilization: float = 0.9
    max_model_len: int | None = None
    mean_len: int | None = None
    shared_prefix_len: int = 0
    max_num_batched_tokens: int = 2048
    kv_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class SpeedPoint:
    """The ideal decode step of a batch."""

    batch: int
    step_s: float
    is_memory_bound: bool

    @property
    def tokens_per_s(self) -> float:
        return self.batch / self.step_s


@dataclass(frozen=True, slots=True)
class Deployment:
    """A model, a setting, and a device (or just a KV pool, when the setting gives it)."""

    geometry: Geometry
    setting: Setting
    device: Device | None

    def __post_init__(self) -> None:
        setting, longest = self.setting, self.geometry.max_model_len
        if self.device is None and setting.kv_bytes is None:
            raise ConfigurationError("give --gpu, --memory with --bandwidth, or --kv-memory")
        if setting.max_model_len is not None and setting.max_model_len > longest:
            raise ConfigurationError(
                f"--max-model-len {setting.max_model_len} exceeds the model's own {longest}"
            )
        if setting.shared_prefix_len >= self.mean_len:
            raise ConfigurationError(
                f"--shared-prefix {setting.shared_prefix_len} must be below the mean length "
                f"{self.mean_len}"
            )

    # Memory ---------------------------------------------------------------------------------

    @property
    def max_model_len(self) -> int:
        return self.setting.max_model_len or self.geometry.max_model_len

    @property
    def mean_len(self) -> int:
        return self.setting.mean_len or self.max_model_len

    @property
    def weight_bytes(self) -> int:
        setting = self.setting
        return self.geometry.weight_bytes(setting.scheme, lm_head=setting.quantize_lm_head)

    @property
    def weight_share_of_bf16(self) -> float:
        return self.weight_bytes / self.geometry.weight_bytes("bf16")

    @property
    def activation_bytes(self) -> int:
        """Buffers of a full step in bf16, and the logits."""
        g = self.geometry
        widths = 3 * g.hidden_size + (2 * g.num_heads + 2 * g.num_kv_heads) * g.head_size
        widths += 3 * g.intermediate_size
        return 2 * self.setting.max_num_batched_tokens * widths + 4 * LOGIT_ROWS * g.vocab_size

    @property
    def kv_pool_bytes(self) -> int:
        """Bytes for the KV cache; negative when the rest alone does not fit."""
        if self.setting.kv_bytes is not None:
            return self.setting.kv_bytes
        assert self.device is not None
        usable = int(self.device.memory_bytes * self.setting.utilization)
        return usable - self.weight_bytes - self.activation_bytes - FRAMEWORK_BYTES

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of K and V of one token, in all layers that keep it."""
        return self.geometry.kv_bytes_per_token(self.setting.kv_dtype)

    @property
    def kv_share_of_bf16(self) -> float:
        return self.kv_bytes_per_token / self.geometry.kv_bytes_per_token("bf16")

    @property
    def block_bytes(self) -> int:
        return self.kv_bytes_per_token * self.setting.block_size

    @property
    def num_blocks(self) -> int:
        """Blocks of all groups together, each group having as many."""
        return max(0, self.kv_pool_bytes // self.block_bytes)

    @property
    def kv_tokens(self) -> int:
        return self.num_blocks * self.setting.block_size

    @property
    def max_concurrency(self) -> float:
        """Requests of full length that fit at once; windowed layers keep their window only."""
        return max(0, self.kv_pool_bytes) / self._request_bytes(self.max_model_len)

    def concurrency_at(self, length: int, shared_prefix_len: int = 0) -> int:
        """Requests of `length` tokens that fit at once.

        Whole blocks of a shared prefix are held once for all of them.
        """
        shared = shared_prefix_len // self.setting.block_size * self.setting.block_size
        own = self._request_bytes(length) - self._request_bytes(shared)
        return max(0, int((self.kv_pool_bytes - self._request_bytes(shared)) // max(own, 1)))

    def _request_bytes(self, length: int) -> int:
        block_size = self.setting.block_size
        total = 0
        for window, token_bytes in self.geometry.kv_groups(self.setting.kv_dtype):
            blocks = -(-length // block_size)
            if window is not None:
                blocks = min(blocks, -(-window // block_size) + 1)
            total += blocks * block_size * token_bytes
        return total

    # Speed ----------------------------------------------------------------------------------

    def speed_at(self, batch: int, tokens_per_request: int = 1) -> SpeedPoint:
        """The ideal step of `batch` requests of mean length, each computing that many tokens."""
        assert self.device is not None
        num_tokens = batch * tokens_per_request
        moved = self.geometry.step_weight_bytes(
            self.setting.scheme, num_tokens, lm_head=self.setting.quantize_lm_head
        )
        moved += batch * self._read_per_request()
        move_s = moved / self.device.bandwidth
        compute_s = num_tokens * self._flops_per_token() / self._peak_flops()
        return SpeedPoint(batch, max(move_s, compute_s), move_s >= compute_s)

    def largest_batch(self, tpot_s: float) -> int:
        """The largest batch that fits and whose ideal step stays within `tpot_s`; 0 if none."""
        low, high = 0, self.concurrency_at(self.mean_len, self.setting.shared_prefix_len)
        while low < high:
            middle = (low + high + 1) // 2
            if self.speed_at(middle).step_s <= tpot_s:
                low = middle
            else:
                high = middle - 1
        return low

    def speculation_pays_up_to(self) -> int:
        """The largest batch that fits and has arithmetic to spare for `DRAFTS` drafts each."""
        low, high = 0, self.concurrency_at(self.mean_len, self.setting.shared_prefix_len)
        while low < high:
            middle = (low + high + 1) // 2
            if self.speed_at(middle, 1 + DRAFTS).is_memory_bound:
                low = middle
            else:
                high = middle - 1
        return low

    def tensor_parallel_sizes(self) -> list[int]:
        """Numbers of devices that divide the heads and hold one full-length request."""
        assert self.device is not None
        sizes = []
        size = 1
        usable = self.device.memory_bytes * self.setting.utilization - FRAMEWORK_BYTES
        needed = self.weight_bytes + self.activation_bytes + self._request_bytes(self.max_model_len)
        while size <= self.geometry.num_heads:
            if self.geometry.num_heads % size == 0 and needed / size <= usable:
                sizes.append(size)
            size *= 2
        return sizes

    def _read_per_request(self) -> float:
        """Bytes of KV that decoding one token of a request of mean length reads."""
        return sum(
            min(self.mean_len, window or self.mean_len) * size
            for window, size in self.geometry.kv_groups(self.setting.kv_dtype)
        )

    def _flops_per_token(self) -> float:
        g = self.geometry
        context = sum(min(self.mean_len, window or self.mean_len) for window in g.windows)
        return 2.0 * g.active_params + 4.0 * g.num_heads * g.head_size * context

    def _peak_flops(self) -> float:
        assert self.device is not None
        is_fp8 = self.setting.scheme == "fp8"
        return self.device.fp8_flops if is_fp8 else self.device.bf16_flops
