"""The text half of a model: what turns a client's wish into a request for the engine.

Shared by the HTTP server and by `hasten.api.llm`. Exercised by `pytest tests/unit/api`.
"""

from __future__ import annotations

import random
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from hasten.api.params import RequestContext
from hasten.api.text.chat_template import ChatTemplate, ChatTemplateError
from hasten.api.text.detokenizer import MarkersShown, SpecialTokensShown
from hasten.api.text.prompt_length import check_prompt_len, encode_prompt
from hasten.api.text.tokenizer import load_tokenizer
from hasten.api.text.tool_prompt import with_tools_described
from hasten.core.messages import AddRequest
from hasten.core.params import InvalidParameterError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hasten.api.params import SamplingParams
    from hasten.api.text import TextCodec, TokenBytes
    from hasten.core.messages import EngineReady
    from hasten.core.options import EngineOptions
    from hasten.core.params import GenerationParams

# JSON numbers above 2^53 lose digits in many clients.
SEED_BITS = 53
NUM_END_TOKENS = 8


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

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """The token ids of a prompt. Raises InvalidParameterError when it can never fit."""
        return encode_prompt(
            self.tokenizer, text, self.info.max_model_len, add_special_tokens=add_special_tokens
        )

    def chat_prompt(
        self,
        messages: Sequence[Mapping[str, Any]],
        template_args: Mapping[str, Any] | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> list[int]:
        """The token ids of a conversation; `template_args` are more variables of the template.

        Functions that the model may call, and calls in `messages`, are described to models whose
        template knows none (`api.text.tool_prompt`).

        Raises ChatTemplateError, or InvalidParameterError when it can never fit.
        """
        if self.template is None:
            raise ChatTemplateError("this model has no chat template; give one: --chat-template")
        if not self.template.knows_tools:
            messages = with_tools_described(messages, tools)
        # The template writes the special tokens itself.
        text = self.template.render(messages, template_args, tools)
        return self.encode(text, add_special_tokens=False)

    def check_token_ids(self, token_ids: Sequence[int], field: str = "prompt") -> None:
        """Raises InvalidParameterError unless the model knows all of them."""
        for token_id in (min(token_ids), max(token_ids)) if token_ids else ():
            if not 0 <= token_id < self.info.vocab_size:
                raise InvalidParameterError(
                    field,
                    f"token id {token_id} is outside the vocabulary of {self.info.vocab_size}",
                )

    def check_prompt(self, token_ids: Sequence[int]) -> None:
        """Raises InvalidParameterError unless this can be a prompt, the cheapest check first."""
        if not token_ids:
            raise InvalidParameterError("prompt", "must not be empty")
        check_prompt_len(len(token_ids), self.info.max_model_len)
        self.check_token_ids(token_ids)

    def vocabulary(self, params: SamplingParams, markers: Sequence[str] = ()) -> TokenBytes:
        """What token ids mean to who asked for this; `markers` are special tokens shown anyway."""
        if not params.skip_special_tokens:
            return SpecialTokensShown(self.tokenizer)
        return MarkersShown(self.tokenizer, markers) if markers else self.tokenizer

    def end_of(self, prompt: Sequence[int]) -> str:
        """The last characters of a prompt, special tokens written out."""
        return self.tokenizer.decode(prompt[-NUM_END_TOKENS:], skip_special_tokens=False)

    def resolve(self, params: SamplingParams) -> GenerationParams:
        """The form that reaches the engine, with a seed; as yet for the shortest of prompts.

        Raises InvalidParameterError.
        """
        context = RequestContext(
            tokenizer=self.tokenizer,
            eos_token_ids=self.info.eos_token_ids,
            default_max_tokens=max(1, self.info.max_model_len - 1),
            seed=self.new_seed(),
        )
        return params.resolve(context)

    def fit(self, resolved: GenerationParams, num_prompt_tokens: int) -> GenerationParams:
        """The same for a prompt of this length, where the output is to fill what it leaves.

        Raises InvalidParameterError when `min_tokens` does not fit.
        """
        max_tokens = max(1, self.info.max_model_len - num_prompt_tokens)
        return msgspec.structs.replace(resolved, max_tokens=max_tokens)

    def request(self, request_id: str, prompt: list[int], params: SamplingParams) -> AddRequest:
        """What to send to the engine. Raises InvalidParameterError."""
        resolved = self.resolve(params)
        if params.max_tokens is None:
            resolved = self.fit(resolved, len(prompt))
        return AddRequest(request_id=request_id, prompt_token_ids=prompt, params=resolved)
