"""The configuration of an engine, from what the engine says of itself and the text around it.

`hasten serve --require-eval` asks `check_evaluated` before it is ready. Exercised by
`pytest tests/evals/test_engine_configuration.py`.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from hasten.evals.canonical import content_hash
from hasten.evals.configuration import Configuration, environment_parts
from hasten.evals.store import Store, default_root

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hasten.api.text import TextCodec
    from hasten.core.options import EngineOptions
    from hasten.evals.record import Record
    from hasten.evals.suite import Suite

_PROBES = (
    "The quick brown fox, 1234567890 times: don't you see?",
    "def f(x):\n    return x ** 2  # tabs\tand spaces",
    "Straße, naïve, Привет, 今日は, 🙂🚲",
)
"""Texts whose token ids tell one tokeniser from another."""


def describe(
    identity: Mapping[str, str],
    options: EngineOptions,
    tokenizer: TextCodec,
    template: str,
    damage: str = "",
) -> Configuration:
    """Whatever can change an answer. The name is for people; the parts decide.

    `identity` is that of the model on its backend (`ModelBinding.identity`).
    """
    model = options.model
    quantization = model.quantization or "as stored"
    speculation = options.speculation.spec_method
    probes = [tokenizer.encode(text, add_special_tokens=False) for text in _PROBES]
    parts = {
        **environment_parts(),
        **identity,
        "tokenizer": content_hash(probes),
        "chat_template": hashlib.sha256(template.encode()).hexdigest(),
        "quantization": quantization,
        "speculation": speculation,
    }
    guessing = "" if speculation == "off" else f", guesses by {speculation}"
    name = f"{model.model} ({_short(identity)}, {quantization}{guessing})"
    if damage:
        return Configuration(f"{name} with {damage}", {**parts, "damage": damage})
    return Configuration(name, parts)


def _short(identity: Mapping[str, str]) -> str:
    kv, activations = identity["kv_cache"], identity["activations"]
    return f"{identity['kernels']}, {activations}{'' if kv == activations else f', KV {kv}'}"


def template_source(options: EngineOptions, tokenizer: TextCodec) -> str:
    """The chat template that these options serve with; empty if there is none."""
    if options.model.chat_template is not None:
        return Path(options.model.chat_template).read_text(encoding="utf-8")
    return tokenizer.info.chat_template or ""


def check_evaluated(
    configuration: Configuration,
    suite: Suite,
    store: str | None = None,
    key: bytes | None = None,
) -> Record:
    """The newest passing record of exactly this configuration under exactly this suite.

    `store` is a folder, by default the user's; with a `key`, records that it did not sign do not
    count. Raises NotEvaluatedError, whose message says what the nearest record that passes has
    otherwise.
    """
    root = default_root() if store is None else Path(store)
    return Store(root, key).require_pass(suite, configuration)
