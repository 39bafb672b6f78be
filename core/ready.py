"""What clients are told of an engine that can take requests, and the hash of what it computes.

Exercised by `pytest tests/cpu/engine/test_build.py`.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

from hasten.core.messages import EngineReady
from hasten.core.pooling import HIDDEN

if TYPE_CHECKING:
    from hasten.core.binding import ModelBinding
    from hasten.core.memory import MemoryPlan
    from hasten.core.options import EngineOptions


def ready_message(binding: ModelBinding, plan: MemoryPlan, options: EngineOptions) -> EngineReady:
    model, tapped = binding.model, binding.program.taps.get(HIDDEN)
    return EngineReady(
        model_name=options.model.served_model_name or model.name,
        eos_token_ids=model.eos_token_ids,
        generation_defaults=dict(model.generation_defaults),
        max_model_len=plan.max_model_len,
        vocab_size=binding.program.vocab_size,
        num_kv_tokens=plan.num_kv_tokens,
        config_hash=config_hash(binding, options),
        embedding_width=tapped.width if tapped is not None else None,
        identity=binding.identity(),
    )


def config_hash(binding: ModelBinding, options: EngineOptions) -> str:
    """Names everything that can change an answer: weights, kernels, dtypes, text handling."""
    identity = binding.identity() | {
        "tokenizer": _file_identity(options.model.tokenizer),
        "chat_template": _file_identity(options.model.chat_template),
    }
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]


def _file_identity(path: str | None) -> str:
    """A file's contents; for a directory or the model's own (None), its name."""
    if path is None or not Path(path).is_file():
        return path or ""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()
