from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

_I32: TypeAlias = npt.NDArray[np.int32]
_F32: TypeAlias = npt.NDArray[np.float32]
_U8: TypeAlias = npt.NDArray[np.uint8]

class Packed:
    @property
    def num_bytes(self) -> int: ...

class Arena:
    def __init__(self) -> None: ...
    def take(self, num_bytes: int) -> _U8: ...

class FetchTrial:
    def begin(self, num_rows: int) -> bool: ...
    def end(self, seconds: float) -> None: ...

class Team:
    def __init__(self, num_threads: int) -> None: ...

class Program:
    def __init__(
        self,
        isa: str,
        team: Team,
        max_tokens: int,
        max_requests: int,
        max_logit_rows: int,
        max_model_len: int,
        vocab_size: int,
        kv_data: Sequence[_U8],
        kv_shapes: Sequence[Sequence[int]],
    ) -> None: ...
    @property
    def isa(self) -> str: ...
    @property
    def num_bytes(self) -> int: ...
    def add_buffer(self, width: int, has_logit_rows: bool, forms: int) -> int: ...
    def embed(self, table: Packed, scale: float, out: int, forms: int) -> None: ...
    def rms_norm(
        self, x: int, residual: int, weight: _F32, eps: float, out: int, forms: int
    ) -> None: ...
    def linear(
        self,
        x: int,
        weight: Packed,
        bias: _F32 | None,
        activation: int,
        out_begin: int,
        out: int,
        forms: int,
        adds: bool,
    ) -> None: ...
    def rope_store_kv(
        self,
        qkv: int,
        group_id: int,
        layer_idx: int,
        num_heads: int,
        num_kv_heads: int,
        head_size: int,
        cos: _F32,
        sin: _F32,
        q_norm: _F32 | None,
        k_norm: _F32 | None,
        eps: float,
        k_scale: float,
        v_scale: float,
        is_bf16: bool,
    ) -> None: ...
    def paged_attention(
        self,
        qkv: int,
        group_id: int,
        layer_idx: int,
        num_heads: int,
        num_kv_heads: int,
        head_size: int,
        scale: float,
        window: int,
        softcap: float,
        sinks: _F32 | None,
        is_exact: bool,
        out: int,
        forms: int,
    ) -> None: ...
    def act_mul(self, x: int, activation: int, out: int, forms: int) -> None: ...
    def gather_rows(self, x: int, out: int, forms: int) -> None: ...
    def form(self, x: int, out: int, forms: int) -> None: ...
    def norm_columns(self, x: int, begin: int, weight: _F32, eps: float) -> None: ...
    def add_scaled(self, x: int, out: int, scale: float) -> None: ...
    def scale_logits(self, logits: int, scale: float, softcap: float) -> None: ...
    def route(self, logits: int, num_active: int, renormalizes: bool, out: int) -> None: ...
    def add_expert_order(self, num_experts: int, num_active: int) -> int: ...
    def add_expert_rows(self, width: int, num_active: int, forms: int) -> int: ...
    def sort_experts(self, routing: int, order: int) -> None: ...
    def gather_experts(self, x: int, order: int, out: int, forms: int) -> None: ...
    def grouped_linear(
        self,
        rows: int,
        order: int,
        matrices: Sequence[tuple[Packed, int, int]],
        part_width: int,
        out: int,
    ) -> None: ...
    def combine_experts(self, x: int, routing: int, out: int, forms: int) -> None: ...
    def begin_tail(self) -> None: ...
    def sample(self, logits: int) -> None: ...
    def rows(self, buffer: int) -> _F32: ...
    def run(
        self,
        token_ids: _I32,
        positions: _I32,
        query_starts: _I32,
        seq_lens: _I32,
        table_rows: _I32,
        logit_rows: _I32,
        groups: tuple[tuple[_I32, _I32, _I32], ...],
        sampling: tuple[npt.NDArray[Any], ...],
        counts: tuple[_I32, _I32, _F32] | None,
        bias: tuple[_I32, _I32, _F32] | None,
        mask_idx: _I32 | None,
        masks: npt.NDArray[np.uint32] | None,
        masks_ready: _I32 | None,
        num_top: int,
        out_token_ids: _I32,
        out_logprobs: _F32,
        out_top_ids: _I32,
        out_top_logprobs: _F32,
    ) -> None: ...
    def bind_chain(
        self,
        translation: _I32 | None,
        first_group: int,
        end_group: int,
        least_shared: float,
        known: npt.NDArray[np.uint16] | None,
        features: int,
        hidden: int,
        left: int,
    ) -> None: ...
    def store_taps(
        self, taps: Sequence[int], group_id: int, rows: npt.NDArray[np.uint16]
    ) -> None: ...
    def draft(
        self,
        token_ids: _I32,
        query_starts: _I32,
        starts: _I32,
        table_rows: _I32,
        guessing: _I32,
        tables: tuple[_I32, ...],
        sampling: tuple[npt.NDArray[Any], ...] | None,
        mask_idx: _I32 | None,
        masks: npt.NDArray[np.uint32] | None,
        hidden: _F32 | None,
        num_passes: int,
        least_survival: float,
        survivals: _F32,
        out_token_ids: _I32,
        out_logprobs: _F32,
    ) -> int: ...

def allocate(num_bytes: int) -> _U8: ...
def bytes_per_second(isa: str, num_threads: int, num_bytes: int) -> float: ...
def multiply_adds_per_second(isa: str, num_threads: int) -> float: ...
def best_isa(limit: str) -> str: ...
def packed_bytes(
    weight_format: int, scales: int, rows: int, width: int, scale_groups: int = 1
) -> int: ...
def packed(
    weight_format: int, scales: int, rows: int, width: int, scale_groups: int, data: _U8
) -> Packed: ...
def pack_integers(
    weight_format: int,
    scale_type: int,
    group_size: int,
    q: _U8,
    scales: npt.NDArray[Any],
    offsets: npt.NDArray[Any] | None,
    out: _U8,
) -> None: ...
def pack_dense(weight_format: int, values: _F32, out: _U8) -> None: ...
