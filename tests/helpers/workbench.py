"""A model on a backend, compiled once, under as many differently sized engines as a test wants.

Engines of one workbench share its KV storage, so only one of them may be in use at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hasten.core.engine import Engine
from hasten.core.messages import AddRequest
from hasten.core.protocols import Speculator
from hasten.core.runner import InProcessExecutor
from hasten.kernels.backend import Backend, KVPlan, get_backend
from hasten.kernels.dtypes import DType
from hasten.kernels.program import Capacity, Program, WeightName
from hasten.kernels.weights import Weight

from tests.helpers.engines import EngineSize, make_parts

if TYPE_CHECKING:
    from hasten.core.loading import LoadedModel

MAX_SEQS = 16
MAX_TOKENS = 2048


@dataclass(slots=True)
class Workbench:
    """`size` is the largest engine: enough blocks for everybody, steps of 2048 tokens."""

    executor: InProcessExecutor
    size: EngineSize
    vocab_size: int

    @classmethod
    def make(
        cls,
        model: LoadedModel,
        kernels: str,
        dtype: DType,
        *,
        num_blocks: int,
        max_model_len: int,
        kv_dtype: DType | None = None,
    ) -> Workbench:
        """`kv_dtype` is that of the activations unless told."""
        return cls.over(
            get_backend(kernels),
            model.build_program(dtype, kv_dtype or dtype),
            model.weights,
            num_blocks=num_blocks,
            max_model_len=max_model_len,
        )

    @classmethod
    def over(
        cls,
        backend: Backend,
        program: Program,
        weights: Mapping[WeightName, Weight],
        *,
        num_blocks: int,
        max_model_len: int,
    ) -> Workbench:
        """The same of a program that was recorded already."""
        size = EngineSize(
            num_blocks=num_blocks,
            block_size=16,
            max_model_len=max_model_len,
            max_num_seqs=MAX_SEQS,
            max_num_batched_tokens=MAX_TOKENS,
            groups=program.kv_groups,
        )
        executor = InProcessExecutor(
            backend,
            program,
            weights,
            KVPlan(program.kv_groups, (num_blocks,) * len(program.kv_groups), size.block_size),
            Capacity(MAX_TOKENS, MAX_SEQS, max_logit_rows=64, max_model_len=max_model_len),
        )
        return cls(executor, size, program.vocab_size)

    def engine(
        self,
        *,
        num_blocks: int | None = None,
        max_num_batched_tokens: int = MAX_TOKENS,
        enable_prefix_caching: bool = True,
        speculator: Speculator | None = None,
    ) -> Engine:
        size = replace(
            self.size,
            num_blocks=num_blocks or self.size.num_blocks,
            max_num_batched_tokens=max_num_batched_tokens,
            enable_prefix_caching=enable_prefix_caching,
        )
        return Engine(make_parts(size, self.executor, self.vocab_size, speculator))

    def demand(self, requests: list[AddRequest]) -> tuple[int, int]:
        """Blocks that all samples together, and the largest one alone, would fill."""
        needs = [
            -(-(len(r.prompt_token_ids) + r.params.max_tokens) // self.size.block_size)
            for r in requests
        ]
        total = sum(need * r.params.n for need, r in zip(needs, requests, strict=True))
        return total, max(needs)
