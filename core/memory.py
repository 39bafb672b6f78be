"""How much memory a configuration takes, by arithmetic: weights, activations, KV pools, limits.

One budget is split between the KV groups so that all of them run out together: with `c` requests
of full length in mind, a group gets `c` times the blocks that one such request keeps in it.

    |<------------------------ available memory ------------------------>|
    | weights | activations | graphs |  KV pools (group 0 | group 1 | ...) |
                                      each: null block + blocks that requests own

Pure: the sizes of weights and blocks, and the free memory, are arguments. Exercised by
`pytest tests/unit/core/test_memory.py` and shown by `hasten serve` when it starts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hasten.core.options import ConfigurationError
from hasten.kernels.program import Rows

if TYPE_CHECKING:
    from hasten.kernels.program import Capacity, Program

DEFAULT_KV_CAP_BYTES = 2 * 2**30
"""On a CPU the KV cache shares memory with everything else: not more than this unless told."""

MIB = 2**20


@dataclass(frozen=True, slots=True)
class GroupSize:
    """One KV group: bytes of a block (all its layers together) and its attention window."""

    block_bytes: int
    window: int | None = None

    def blocks_per_request(self, num_tokens: int, block_size: int, step_tokens: int) -> int:
        """The most blocks that a request of `num_tokens` keeps here at once.

        A windowed request holds what its window reads and what a step of `step_tokens` writes.
        """
        blocks = -(-num_tokens // block_size)
        if self.window is None:
            return blocks
        return min(blocks, -(-(self.window + step_tokens) // block_size) + 1)


@dataclass(frozen=True, slots=True)
class MemoryDemand:
    """What the plan is made from; bytes, tokens and counts as the options and the model say."""

    weights_bytes: int
    activation_bytes: int
    available_bytes: int
    utilization: float
    kv_cache_memory_bytes: int | None
    groups: tuple[GroupSize, ...]
    block_size: int
    max_num_seqs: int
    max_num_batched_tokens: int
    model_max_len: int
    max_model_len: int | None
    kv_cap_bytes: int | None = DEFAULT_KV_CAP_BYTES
    graph_bytes: int = 0


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The outcome. `num_blocks` counts each group's null block; `num_kv_tokens` does not."""

    weights_bytes: int
    activation_bytes: int
    kv_bytes: int
    num_blocks: tuple[int, ...]
    block_size: int
    num_kv_tokens: int
    max_model_len: int
    max_concurrency: float
    graph_bytes: int = 0

    def lines(self) -> list[str]:
        """The start-up report, one fact a line."""
        blocks = " + ".join(f"{count - 1:,}" for count in self.num_blocks)
        graphs = [f"graphs       {_mib(self.graph_bytes)}"] if self.graph_bytes else []
        return [
            f"weights      {_mib(self.weights_bytes)}",
            f"activations  {_mib(self.activation_bytes)}",
            *graphs,
            f"KV cache     {_mib(self.kv_bytes)}: {self.num_kv_tokens:,} tokens, "
            f"{blocks} blocks of {self.block_size}",
            f"concurrency  {self.max_concurrency:.1f} requests of {self.max_model_len:,} tokens",
        ]


def plan_memory(demand: MemoryDemand) -> MemoryPlan:
    """Size the KV pools and settle `max_model_len`.

    Without `max_model_len` the model's own is taken, or the longest that the pools hold.
    Raises ConfigurationError, with the numbers and what to change, when they hold too little.
    """
    budget = _kv_budget(demand)
    longest = _longest_request(demand, budget)
    wanted = demand.max_model_len or max(1, min(demand.model_max_len, longest))
    if wanted > demand.model_max_len:
        raise ConfigurationError(
            f"--max-model-len {wanted} exceeds the model's own context of {demand.model_max_len}"
        )
    if wanted > longest:
        raise ConfigurationError(_too_small(demand, budget, longest, wanted))
    return _split(demand, budget, wanted)


def activation_bytes(program: Program, capacity: Capacity) -> int:
    """Bytes of a program's buffers at their largest size."""
    rows = {Rows.TOKENS: capacity.max_tokens, Rows.LOGITS: capacity.max_logit_rows}
    return sum(rows[made.rows] * made.width * made.dtype.itemsize for made in program.buffers)


def _kv_budget(demand: MemoryDemand) -> int:
    """Bytes for all KV pools: as told, or a share of what is free, capped by use and by default."""
    told = demand.kv_cache_memory_bytes
    if told is not None:
        if told > demand.available_bytes:
            raise ConfigurationError(
                f"--kv-cache-memory-bytes {told} ({_mib(told)}): "
                f"only {_mib(demand.available_bytes)} of memory are free"
            )
        return told
    taken = demand.weights_bytes + demand.activation_bytes + demand.graph_bytes
    free = int(demand.utilization * demand.available_bytes) - taken
    at_most = _bytes_for(demand, demand.max_model_len or demand.model_max_len, demand.max_num_seqs)
    if demand.kv_cap_bytes is not None:
        # A request length that was asked for by name may take more than the default.
        told = _bytes_for(demand, demand.max_model_len, 1) if demand.max_model_len else 0
        at_most = min(at_most, max(demand.kv_cap_bytes, told))
    return max(0, min(free, at_most))


def _bytes_for(demand: MemoryDemand, num_tokens: int, num_requests: int) -> int:
    """Bytes that hold `num_requests` of this length, null blocks included."""
    needs = _needs(demand, num_tokens)
    return sum(
        (num_requests * need + 1) * group.block_bytes
        for need, group in zip(needs, demand.groups, strict=True)
    )


def _needs(demand: MemoryDemand, num_tokens: int) -> list[int]:
    step_tokens = min(num_tokens, demand.max_num_batched_tokens)
    return [
        group.blocks_per_request(num_tokens, demand.block_size, step_tokens)
        for group in demand.groups
    ]


def _longest_request(demand: MemoryDemand, budget: int) -> int:
    """The longest request that fits alone, at most the model's own context; 0 if none does."""
    low, high = 0, demand.model_max_len
    while low < high:
        middle = (low + high + 1) // 2
        if _bytes_for(demand, middle, 1) <= budget:
            low = middle
        else:
            high = middle - 1
    return low


def _split(demand: MemoryDemand, budget: int, max_model_len: int) -> MemoryPlan:
    needs = _needs(demand, max_model_len)
    block_bytes = [group.block_bytes for group in demand.groups]
    null_bytes = sum(block_bytes)
    per_request = sum(need * size for need, size in zip(needs, block_bytes, strict=True))
    share = (budget - null_bytes) / per_request
    usable = [int(share * need) for need in needs]
    return MemoryPlan(
        weights_bytes=demand.weights_bytes,
        activation_bytes=demand.activation_bytes,
        kv_bytes=null_bytes + sum(n * size for n, size in zip(usable, block_bytes, strict=True)),
        num_blocks=tuple(count + 1 for count in usable),
        block_size=demand.block_size,
        num_kv_tokens=_kv_tokens(demand, usable, share, max_model_len),
        max_model_len=max_model_len,
        max_concurrency=min(count / need for count, need in zip(usable, needs, strict=True)),
        graph_bytes=demand.graph_bytes,
    )


def _kv_tokens(demand: MemoryDemand, usable: list[int], share: float, max_model_len: int) -> int:
    full = [n for n, group in zip(usable, demand.groups, strict=True) if group.window is None]
    return min(full) * demand.block_size if full else int(share * max_model_len)


def _too_small(demand: MemoryDemand, budget: int, longest: int, wanted: int) -> str:
    needed = _bytes_for(demand, wanted, 1)
    remedy = f"raise --kv-cache-memory-bytes to at least {needed}"
    if longest > 0:
        remedy = f"lower --max-model-len to at most {longest}, or {remedy}"
    return (
        f"a KV cache of {_mib(budget)} holds {longest:,} tokens, but one request of "
        f"--max-model-len {wanted:,} needs {_mib(needed)}: {remedy}"
    )


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / MIB:,.1f} MiB"
