"""Calibration tokens: cut from given text, or written by the model itself.

A model's own text needs no data and no network, and resembles what it will compute; every sequence
starts from a random token, so that they differ. Source: LLM-QAT (Liu et al., 2023).
Exercised by `pytest tests/cpu/quant/test_quantize.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from hasten.core.build import build_engine
from hasten.core.messages import AddRequest
from hasten.core.options import (
    CacheOptions,
    ConfigurationError,
    EngineOptions,
    ModelOptions,
    SchedulerOptions,
)
from hasten.core.params import GenerationParams

if TYPE_CHECKING:
    import numpy.typing as npt
    from hasten.core.engine import Engine
    from hasten.core.quantize.options import QuantizeOptions

TEMPERATURE, TOP_P = 0.8, 0.95
CONCURRENCY = 16


def cut_sequences(token_ids: Sequence[int], options: QuantizeOptions) -> npt.NDArray[np.int32]:
    """Sequences spread evenly over a text. Raises ConfigurationError when it is too short."""
    wanted, length = options.num_sequences, options.sequence_len
    if len(token_ids) < wanted * length:
        raise ConfigurationError(
            f"the calibration text has {len(token_ids)} tokens; {wanted} sequences of {length} "
            f"need {wanted * length}: lower --num-sequences or --sequence-len"
        )
    starts = np.linspace(0, len(token_ids) - length, wanted).astype(np.int64)
    ids = np.asarray(token_ids, np.int32)
    return np.stack([ids[start : start + length] for start in starts])


def write_own_text(
    reference: str, options: QuantizeOptions, start_token_id: int
) -> npt.NDArray[np.int32]:
    """Sequences that the model samples after `start_token_id` and a random token."""
    engine = build_engine(
        EngineOptions(
            model=ModelOptions(model=reference, max_model_len=options.sequence_len),
            cache=CacheOptions(enable_prefix_caching=False),
            scheduler=SchedulerOptions(max_num_seqs=CONCURRENCY, max_num_batched_tokens=512),
        )
    )
    rng = np.random.default_rng(options.seed)
    seconds = rng.integers(0, engine.ready_message().vocab_size, options.num_sequences)
    sequences = {str(idx): [start_token_id, int(second)] for idx, second in enumerate(seconds)}
    for idx, prompt in enumerate(sequences.values()):
        engine.add_request(_request(str(idx), prompt, options, options.seed + idx))
    _collect(engine, sequences)
    return np.array(list(sequences.values()), np.int32)


def _request(request_id: str, prompt: list[int], options: QuantizeOptions, seed: int) -> AddRequest:
    params = GenerationParams(
        max_tokens=options.sequence_len - len(prompt),
        seed=seed,
        temperature=TEMPERATURE,
        top_p=TOP_P,
        ignore_eos=True,
    )
    return AddRequest(request_id=request_id, prompt_token_ids=list(prompt), params=params)


def _collect(engine: Engine, sequences: dict[str, list[int]]) -> None:
    while engine.has_work:
        for output in engine.step():
            sequences[output.request_id].extend(output.token_ids)
