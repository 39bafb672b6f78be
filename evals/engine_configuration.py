"""The configuration of an engine, with or without starting it.

`hasten serve --require-eval` asks `check_evaluated` before it is ready. Exercised by
`pytest tests/evals/test_engine_configuration.py`.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from hasten.api.text.tokenizer import Tokenizer, load_tokenizer
from hasten.core.build import ModelBinding
from hasten.evals.canonical import content_hash
from hasten.evals.configuration import Configuration, environment_parts
from hasten.evals.store import Store, default_root

if TYPE_CHECKING:
    from hasten.core.options import EngineOptions
    from hasten.evals.record import Record

_PROBES = (
    "The quick brown fox, 1234567890 times: don't you see?",
    "def f(x):\n    return x ** 2  # tabs\tand spaces",
    "Straße, naïve, Привет, 今日は, 🙂🚲",
)
"""Texts whose token ids tell one tokeniser from another."""


def describe(
    binding: ModelBinding,
    options: EngineOptions,
    tokenizer: Tokenizer,
    template: str,
    damage: str = "",
) -> Configuration:
    """Whatever can change an answer. The name is for people; the parts decide."""
    model = options.model
    quantization = model.quantization or "as stored"
    probes = [tokenizer.encode(text, add_special_tokens=False) for text in _PROBES]
    parts = {
        **environment_parts(),
        **binding.identity(),
        "tokenizer": content_hash(probes),
        "chat_template": hashlib.sha256(template.encode()).hexdigest(),
        "quantization": quantization,
        "speculation": options.speculation.spec_method,
    }
    name = f"{model.model} ({_short(binding)}, {quantization})"
    if damage:
        return Configuration(f"{name} with {damage}", {**parts, "damage": damage})
    return Configuration(name, parts)


def _short(binding: ModelBinding) -> str:
    kv, activations = binding.kv_format.key, binding.activation_dtype.value
    return f"{binding.backend.name}, {activations}{'' if kv == activations else f', KV {kv}'}"


def template_source(options: EngineOptions, tokenizer: Tokenizer) -> str:
    """The chat template that these options serve with; empty if there is none."""
    if options.model.chat_template is not None:
        return Path(options.model.chat_template).read_text(encoding="utf-8")
    return tokenizer.chat_template or ""


def configuration_of(options: EngineOptions) -> Configuration:
    """The configuration of an engine that was not started: weights are mapped, not computed with.

    Raises LoadError, ConfigurationError.
    """
    binding = ModelBinding.load(options)
    tokenizer = load_tokenizer(options.model.tokenizer or options.model.model)
    return describe(binding, options, tokenizer, template_source(options, tokenizer))


def check_evaluated(
    options: EngineOptions, suite: str, store: Path | None = None, key: bytes | None = None
) -> Record:
    """The passing record of exactly this configuration under `suite`.

    `store` defaults to the user's; with a `key`, records that it did not sign do not count. Raises
    NotEvaluatedError, whose message says what differs from the nearest record that passes.
    """
    return Store(store or default_root(), key).require_pass(suite, configuration_of(options))
