"""From options to the grammars of an engine: the object to hand to `core.build.build_engine`.

The vocabulary, which takes half a second and 40 MB to build, is built for the first request that
needs it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from hasten.api.structured.masks import GrammarMasks
from hasten.core.host import release_free_memory

if TYPE_CHECKING:
    from hasten.api.structured.compiler import Vocabulary
    from hasten.core.options import EngineOptions


def make_grammars(options: EngineOptions, has_idle_processor: bool) -> GrammarMasks:
    """What is wrong with the model's vocabulary, requests will hear."""
    load = partial(_load, options.model.tokenizer or options.model.model)
    return GrammarMasks(load, beside_model=has_idle_processor)


def _load(reference: str) -> Vocabulary:
    from hasten.api.structured.compiler import Vocabulary
    from hasten.api.text.tokenizer import load_tokenizer

    vocabulary = Vocabulary(load_tokenizer(reference))
    release_free_memory()
    return vocabulary
