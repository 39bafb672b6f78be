"""From options to the grammars of an engine: the object to hand to `core.build.build_engine`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from hasten.api.structured.compiler import Vocabulary
from hasten.api.structured.masks import GrammarMasks
from hasten.api.text.tokenizer import load_tokenizer

if TYPE_CHECKING:
    from hasten.core.options import EngineOptions


def make_grammars(options: EngineOptions) -> GrammarMasks:
    """Begins to build the vocabulary at once; what is wrong with it, requests will hear."""
    return GrammarMasks(partial(_load, options.model.tokenizer or options.model.model))


def _load(reference: str) -> Vocabulary:
    return Vocabulary(load_tokenizer(reference))
