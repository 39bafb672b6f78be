"""A deployment as plain data: the schema of `hasten plan --json` (documented in docs/plan.md)."""

from __future__ import annotations

import msgspec
from hasten.core.planning.deployment import DRAFTS, Deployment, SpeedPoint

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class SpeedRow(msgspec.Struct, frozen=True):
    """The ideal decode step at one batch; `bound` is "memory" or "compute"."""

    batch: int
    step_ms: float
    tokens_per_s: float
    tokens_per_s_per_request: float
    bound: str

    @classmethod
    def of(cls, point: SpeedPoint) -> SpeedRow:
        bound = "memory" if point.is_memory_bound else "compute"
        return cls(point.batch, point.step_s * 1e3, point.tokens_per_s, 1 / point.step_s, bound)


class KVGroupRow(msgspec.Struct, frozen=True):
    """One KV group: its window in tokens (null: all) and the bytes of a token in it."""

    window: int | None
    bytes_per_token: int


class PlanReport(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes, tokens, blocks and requests; see the properties of `Deployment`."""

    schema: str = "hasten.plan/1"
    model: str
    num_params: int
    active_params: int
    weight_bytes: int
    weight_share_of_bf16: float
    weight_bytes_by_scheme: dict[str, int]
    activation_bytes: int
    kv_groups: list[KVGroupRow]
    kv_bytes_per_token: int
    kv_share_of_bf16: float
    block_size: int
    block_bytes: int
    kv_pool_bytes: int
    num_blocks: int
    kv_tokens: int
    max_model_len: int
    max_concurrency: float
    mean_len: int
    concurrency_at_mean_len: int
    shared_prefix_len: int
    concurrency_with_shared_prefix: int
    device: str | None = None
    tensor_parallel_sizes: list[int] | None = None
    speculation_drafts: int = DRAFTS
    speculation_pays_up_to_batch: int | None = None
    largest_batch_for_tpot: int | None = None
    speed: list[SpeedRow] = []


def report(deployment: Deployment, schemes: tuple[str, ...], tpot_s: float | None) -> PlanReport:
    """All figures; those of speed only where a device is known and holds the model."""
    d, setting = deployment, deployment.setting
    fits = d.device is not None and d.num_blocks > 0
    return PlanReport(
        model=d.geometry.name,
        num_params=d.geometry.num_params,
        active_params=d.geometry.active_params,
        weight_bytes=d.weight_bytes,
        weight_share_of_bf16=d.weight_share_of_bf16,
        weight_bytes_by_scheme={
            name: d.geometry.weight_bytes(name, lm_head=setting.quantize_lm_head)
            for name in schemes
        },
        activation_bytes=d.activation_bytes,
        kv_groups=[KVGroupRow(*group) for group in d.geometry.kv_groups(setting.kv_dtype)],
        kv_bytes_per_token=d.kv_bytes_per_token,
        kv_share_of_bf16=d.kv_share_of_bf16,
        block_size=setting.block_size,
        block_bytes=d.block_bytes,
        kv_pool_bytes=d.kv_pool_bytes,
        num_blocks=d.num_blocks,
        kv_tokens=d.kv_tokens,
        max_model_len=d.max_model_len,
        max_concurrency=d.max_concurrency,
        mean_len=d.mean_len,
        concurrency_at_mean_len=d.concurrency_at(d.mean_len),
        shared_prefix_len=setting.shared_prefix_len,
        concurrency_with_shared_prefix=d.concurrency_at(d.mean_len, setting.shared_prefix_len),
        device=None if d.device is None else d.device.name,
        tensor_parallel_sizes=None if d.device is None else d.tensor_parallel_sizes(),
        speculation_pays_up_to_batch=d.speculation_pays_up_to() if fits else None,
        largest_batch_for_tpot=d.largest_batch(tpot_s) if fits and tpot_s else None,
        speed=[SpeedRow.of(d.speed_at(batch)) for batch in _batches(d)] if fits else [],
    )


def _batches(deployment: Deployment) -> list[int]:
    """Powers of two, up to what fits at mean length, which ends the list."""
    d = deployment
    most = max(1, d.concurrency_at(d.mean_len, d.setting.shared_prefix_len))
    return [batch for batch in BATCHES if batch < most] + [min(most, BATCHES[-1])]
