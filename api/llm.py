"""A model in this process: prompts in, texts out.

    from hasten.api import LLM, SamplingParams

    llm = LLM("embedded")
    for result in llm.generate(["One, two,", "Once upon"], SamplingParams(max_tokens=8)):
        print(result.text)

All prompts of a call run together, as many at once as the engine takes. `AsyncLLM` is the same over
an engine process, one request at a time from any number of tasks.
Exercised by `pytest tests/cpu/api/test_llm.py`.
"""

from __future__ import annotations

import difflib
import uuid
from contextlib import aclosing
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Self

from hasten.api.client import EngineClient, RequestRefusedError
from hasten.api.generation import generate_text
from hasten.api.params import SamplingParams
from hasten.api.text.sample_text import SampleText
from hasten.api.text_model import TextModel, template_of, tokenizer_of
from hasten.core.options import EngineOptions
from rich.progress import Progress

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence

    from hasten.api.engine_process import EngineLike
    from hasten.api.text.sample_text import SampleDelta, TokenRecord
    from hasten.core.messages import AddRequest, PositionLogprobs, TokenOutput

    Prompt = str | Sequence[int]
    Messages = Sequence[Mapping[str, str]]


@dataclass(slots=True)
class Sample:
    """One continuation. `finish_reason` and `stop_reason` are as the HTTP API gives them."""

    text: str = ""
    tokens: list[TokenRecord] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: str | int | None = None

    def extend(self, delta: SampleDelta) -> None:
        self.text += delta.text
        self.tokens += delta.tokens
        self.finish_reason = delta.finish_reason
        self.stop_reason = delta.stop_reason


@dataclass(slots=True)
class Result:
    """What became of one prompt; `seed` repeats it."""

    prompt_token_ids: list[int]
    seed: int
    samples: list[Sample]
    num_cached_tokens: int = 0
    prompt_logprobs: Sequence[PositionLogprobs | None] | None = None

    @property
    def text(self) -> str:
        """The text of the first sample."""
        return self.samples[0].text

    def add(self, delta: SampleDelta) -> None:
        self.samples[delta.sample_idx].extend(delta)
        if delta.sample_idx == 0:
            self.num_cached_tokens = delta.num_cached_tokens
        if delta.prompt_logprobs is not None:
            self.prompt_logprobs = delta.prompt_logprobs


def engine_options(model: str, options: Mapping[str, Any]) -> EngineOptions:
    """Engine options from the names of their fields, as on the command line.

    Raises TypeError for an unknown name, with the nearest known one.
    """
    remaining = {"model": model, **options}
    sections: dict[str, Any] = {}
    known: list[str] = []
    for section in fields(EngineOptions):
        default = getattr(EngineOptions(), section.name)
        names = [each.name for each in fields(default)]
        known += names
        values = {name: remaining.pop(name) for name in names if name in remaining}
        sections[section.name] = type(default)(**values)
    for name in remaining:
        nearest = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
        raise TypeError(f"unknown option {name!r}{hint}")
    return EngineOptions(**sections)


class LLM:
    """An engine in this process. Not safe to use from several threads at once."""

    def __init__(self, model: str = "embedded", **options: Any) -> None:
        """Load `model`; `options` are the flags of `hasten serve`, as `max_model_len=512`.

        Raises ConfigurationError, LoadError or TypeError.
        """
        # Here and not above: whoever only wants `AsyncLLM` does not need torch in this process.
        from hasten.api.engine import build_engine

        engine = engine_options(model, options)
        tokenizer = tokenizer_of(engine)
        template = template_of(engine, tokenizer)
        self._engine: EngineLike = build_engine(engine)
        self._text = TextModel(tokenizer, template, self._engine.ready_message(), engine.model.seed)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | None = None,
        *,
        progress: bool = False,
    ) -> list[Result]:
        """Continue one or many prompts (texts or token ids); results in the order of the prompts.

        Raises InvalidParameterError or RequestRefusedError before anything is computed.
        """
        return self._run([_encode(self._text, each) for each in _listed(prompts)], params, progress)

    def chat(
        self,
        conversations: Messages | Sequence[Messages],
        params: SamplingParams | None = None,
        *,
        progress: bool = False,
    ) -> list[Result]:
        """Answer one or many conversations; each is a list of messages with role and content."""
        single = bool(conversations) and isinstance(conversations[0], dict)
        listed: Any = [conversations] if single else conversations
        return self._run([self._text.chat_prompt(each) for each in listed], params, progress)

    def _run(
        self, prompts: Sequence[list[int]], params: SamplingParams | None, progress: bool
    ) -> list[Result]:
        params = _with_defaults(self._text, params)
        requests = [_request(self._text, prompt, params) for prompt in prompts]
        running = _Running(self._engine, self._text, params)
        try:
            for request in requests:
                running.start(request)
            with Progress(disable=not progress) as bar:
                task = bar.add_task("prompts", total=len(requests))
                while self._engine.has_work:
                    running.take(self._engine.step())
                    bar.update(task, completed=running.num_finished)
        finally:
            # Nothing of a call that broke off may go on in the next one.
            self._engine.abort([request.request_id for request in requests])
        return list(running.results.values())


class _Running:
    """The requests of one call, on their way through the engine."""

    def __init__(self, engine: EngineLike, text: TextModel, params: SamplingParams) -> None:
        self.results: dict[str, Result] = {}
        self._engine = engine
        self._rules = params.stop_rules(text.info.eos_token_ids)
        self._vocabulary = text.vocabulary(params)
        self._unfinished: dict[tuple[str, int], SampleText] = {}
        self._num_samples = params.n

    @property
    def num_finished(self) -> int:
        return len(self.results) - len({request_id for request_id, _ in self._unfinished})

    def start(self, request: AddRequest) -> None:
        refusal = self._engine.add_request(request)
        if refusal is not None:
            raise RequestRefusedError(refusal)
        self.results[request.request_id] = _empty_result(request)
        for i in range(self._num_samples):
            sample = SampleText(self._vocabulary, self._rules, i)
            self._unfinished[request.request_id, i] = sample

    def take(self, outputs: Iterable[TokenOutput]) -> None:
        for output in outputs:
            key = (output.request_id, output.sample_idx)
            delta = self._unfinished[key].push(output)
            self.results[output.request_id].add(delta)
            if delta.finish_reason is not None:
                del self._unfinished[key]
                if output.finish_reason is None:
                    self._engine.abort([output.request_id], output.sample_idx)


class AsyncLLM:
    """An engine in a process of its own, used from one event loop.

    async with await AsyncLLM.start("embedded") as llm:
        result = await llm.generate("Once upon", SamplingParams(max_tokens=8))
    """

    def __init__(self, client: EngineClient, text: TextModel) -> None:
        self._client = client
        self._text = text

    @classmethod
    async def start(cls, model: str = "embedded", **options: Any) -> Self:
        """Load `model` with the flags of `hasten serve`. Raises EngineStartError or LoadError."""
        engine = engine_options(model, options)
        tokenizer = tokenizer_of(engine)
        template = template_of(engine, tokenizer)
        client = await EngineClient.start(engine)
        return cls(client, TextModel(tokenizer, template, client.info, engine.model.seed))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._client.close()

    async def generate(self, prompt: Prompt, params: SamplingParams | None = None) -> Result:
        """Continue a prompt. Raises InvalidParameterError, RequestRefusedError or EngineError."""
        params = _with_defaults(self._text, params)
        return await self._collect(_encode(self._text, prompt), params)

    async def chat(self, messages: Messages, params: SamplingParams | None = None) -> Result:
        """Answer a conversation. Raises as `generate`, and ChatTemplateError."""
        params = _with_defaults(self._text, params)
        return await self._collect(self._text.chat_prompt(messages), params)

    def stream(
        self, prompt: Prompt, params: SamplingParams | None = None
    ) -> AsyncGenerator[SampleDelta]:
        """Continue a prompt piece by piece; leaving early aborts it (use `aclosing`)."""
        params = _with_defaults(self._text, params)
        return self._deltas(_request(self._text, _encode(self._text, prompt), params), params)

    def stream_chat(
        self, messages: Messages, params: SamplingParams | None = None
    ) -> AsyncGenerator[SampleDelta]:
        """Answer a conversation piece by piece; leaving early aborts it (use `aclosing`)."""
        params = _with_defaults(self._text, params)
        return self._deltas(_request(self._text, self._text.chat_prompt(messages), params), params)

    async def _collect(self, prompt: list[int], params: SamplingParams) -> Result:
        request = _request(self._text, prompt, params)
        result = _empty_result(request)
        async with aclosing(self._deltas(request, params)) as deltas:
            async for delta in deltas:
                result.add(delta)
        return result

    def _deltas(self, request: AddRequest, params: SamplingParams) -> AsyncGenerator[SampleDelta]:
        rules = params.stop_rules(self._text.info.eos_token_ids)
        return generate_text(self._client, self._text.vocabulary(params), request, rules)


def _with_defaults(text: TextModel, params: SamplingParams | None) -> SamplingParams:
    """What was asked for; without a word, what the model's authors recommend."""
    return SamplingParams(**text.info.generation_defaults) if params is None else params  # type: ignore[arg-type]  # their names are the fields'


def _request(text: TextModel, prompt: list[int], params: SamplingParams) -> AddRequest:
    return text.request(uuid.uuid4().hex, prompt, params)


def _empty_result(request: AddRequest) -> Result:
    samples = [Sample() for _ in range(request.params.n)]
    return Result(request.prompt_token_ids, request.params.seed, samples)


def _encode(text: TextModel, prompt: Prompt) -> list[int]:
    return text.encode(prompt) if isinstance(prompt, str) else list(prompt)


def _listed(prompts: Prompt | Sequence[Prompt]) -> Sequence[Prompt]:
    is_single = isinstance(prompts, str) or (bool(prompts) and isinstance(prompts[0], int))
    listed: Any = [prompts] if is_single else prompts
    result: Sequence[Prompt] = listed
    return result
