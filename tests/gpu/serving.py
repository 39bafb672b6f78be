"""Tokens per second of decoding, through the whole engine, at batches of 1, 8 and 64."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING

from hasten.core.engine import Engine
from hasten.core.params import GenerationParams
from hasten.core.runner import InProcessExecutor
from hasten.kernels.dtypes import DType
from hasten.kernels.program import Capacity

from tests.gpu.models import LLAMA_8B, TINY, SeededModel, seeded_model
from tests.gpu.setting import Row, Setting
from tests.helpers.engines import EngineSize, ask, make_parts

if TYPE_CHECKING:
    from hasten.core.messages import AddRequest

KINDS = {
    "bf16": ("bf16", DType.BF16),
    "fp8": ("fp8", DType.BF16),
    "int4": ("int4", DType.BF16),
    "fp8 KV": ("bf16", DType.FP8_E4M3),
}
BATCHES = (1, 8, 64)
BLOCK_SIZE = 16


def check_serving(setting: Setting, kind: str, bytes_per_s: float) -> Iterator[Row]:
    """One row per batch; its ideal reads weights and cache once at `bytes_per_s`."""
    scheme, kv_dtype = KINDS[kind]
    config = TINY if setting.is_tiny else LLAMA_8B
    model = seeded_model(config, scheme, kv_dtype, shares_layers=True)
    prompt_len, num_tokens = (5, 4) if setting.is_tiny else (256, 48)
    batches = BATCHES[:1] if setting.is_tiny else BATCHES
    size = _size(model, max(batches), prompt_len + num_tokens + BLOCK_SIZE)
    backend = setting.backend()
    capacity = Capacity(size.max_num_batched_tokens, size.max_num_seqs, 64, size.max_model_len)
    executor = InProcessExecutor(backend, model.program, model.weights, size.kv_plan, capacity)
    kv_bytes = backend.kv_block_bytes(model.program.kv_groups[0], BLOCK_SIZE) / BLOCK_SIZE
    for batch in batches:
        requests = _requests(batch, prompt_len, num_tokens, config.vocab_size)
        _decode(executor, size, model, requests)  # kernels are compiled, graphs captured
        prefill_s, step_s = _decode(executor, size, model, requests)
        context = prompt_len + num_tokens / 2
        ideal_s = (model.weight_bytes + batch * context * kv_bytes) / bytes_per_s
        yield {
            "model": kind,
            "batch": batch,
            "tokens/s": round(batch / step_s, 1),
            "step ms": round(1000 * step_s, 3),
            "of the ideal": round(ideal_s / step_s, 3),
            "prompt tokens/s": round(batch * prompt_len / prefill_s),
            "ok": True,
        }


def _size(model: SeededModel, batch: int, max_len: int) -> EngineSize:
    return EngineSize(
        num_blocks=1 + batch * -(-max_len // BLOCK_SIZE),
        block_size=BLOCK_SIZE,
        max_model_len=max_len,
        max_num_seqs=batch,
        max_num_batched_tokens=max(2048, batch),
        enable_prefix_caching=False,
        groups=model.program.kv_groups,
    )


def _requests(batch: int, prompt_len: int, num_tokens: int, vocab_size: int) -> list[AddRequest]:
    params = GenerationParams(max_tokens=num_tokens, seed=1, ignore_eos=True)
    return [
        ask(f"r{i}", [(i + 7 * at) % vocab_size for at in range(prompt_len)], params)
        for i in range(batch)
    ]


def _decode(
    executor: InProcessExecutor, size: EngineSize, model: SeededModel, requests: list[AddRequest]
) -> tuple[float, float]:
    """Seconds until every request has a token, and the median of the steps after that."""
    engine = Engine(make_parts(size, executor, model.program.vocab_size))
    for request in requests:
        engine.add_request(request)
    prefill_s, steps, started = 0.0, list[float](), set[str]()
    while engine.has_work:
        begin = perf_counter()
        outputs = engine.step()
        seconds = perf_counter() - begin
        if len(started) < len(requests):
            prefill_s += seconds
            started |= {output.request_id for output in outputs}
        elif len(outputs) == len(requests):
            steps.append(seconds)
    return prefill_s, median(steps)
