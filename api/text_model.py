"""The text half of a model: what turns a client's wish into a request for the engine.

Shared by the HTTP server and by `hasten.api.llm`. Exercised by `pytest tests/unit/api`.
"""

from __future__ import annotations

import random
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

from hasten.api.params import RequestContext
from hasten.api.text.chat_template import ChatTemplate, ChatTemplateError
from hasten.api.text.tokenizer import load_tokenizer
from hasten.core.messages import AddRequest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hasten.api.params import SamplingParams
    from hasten.api.text import TextCodec
    from hasten.core.messages import EngineReady
    from hasten.core.options import EngineOptions

# JSON numbers above 2^53 lose digits in many clients.
SEED_BITS = 53


def tokenizer_of(options: EngineOptions) -> TextCodec:
    """The tokeniser that goes with a model. Raises LoadError."""
    return load_tokenizer(options.model.tokenizer or options.model.model)


def template_of(options: EngineOptions, tokenizer: TextCodec) -> ChatTemplate | None:
    """The template from the file that the options name, or else the model's own, if any.

    Raises ChatTemplateError or OSError.
    """
    path, info = options.model.chat_template, tokenizer.info
    source = info.chat_template if path is None else Path(path).read_text(encoding="utf-8")
    if source is None:
        return None
    tokens = {"bos_token": info.bos_token, "eos_token": info.eos_token, "pad_token": info.pad_token}
    return ChatTemplate(
        source, {name: token for name, token in tokens.items() if token is not None}
    )


class TextModel:
    """A tokeniser and a template, with what the engine said of the model; safe in threads.

    `seed` makes the seeds of requests that bring none repeatable.
    """

    def __init__(
        self,
        tokenizer: TextCodec,
        template: ChatTemplate | None,
        info: EngineReady,
        seed: int | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.template = template
        self.info = info
        self._seeds = random.Random(secrets.randbits(64) if seed is None else seed)  # noqa: S311  not for secrets

    def new_seed(self) -> int:
        return self._seeds.getrandbits(SEED_BITS)

    def chat_prompt(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """The token ids of a conversation. Raises ChatTemplateError."""
        if self.template is None:
            raise ChatTemplateError("this model has no chat template; give one: --chat-template")
        # The template writes the special tokens itself.
        return self.tokenizer.encode(self.template.render(messages), add_special_tokens=False)

    def request(
        self,
        request_id: str,
        prompt: list[int],
        params: SamplingParams,
        *,
        seed: int,
        priority: int = 0,
        cache_salt: str = "",
    ) -> AddRequest:
        """The form that reaches the engine; `seed` counts where the parameters hold none.

        Raises InvalidParameterError.
        """
        context = RequestContext(
            tokenizer=self.tokenizer,
            eos_token_ids=self.info.eos_token_ids,
            default_max_tokens=max(1, self.info.max_model_len - len(prompt)),
            seed=seed,
        )
        return AddRequest(
            request_id=request_id,
            prompt_token_ids=prompt,
            params=params.resolve(context),
            priority=priority,
            cache_salt=cache_salt,
        )
