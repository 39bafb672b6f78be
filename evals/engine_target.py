"""An engine in this process as a target.

Scores and continuations go through the engine as served requests do: scheduler, paged cache,
batching, prefix cache. Full distributions need the logits themselves; see `logits`. Exercised by
`pytest tests/evals`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from hasten.api.structured.build import make_grammars
from hasten.api.structured.json_schema import SchemaError, schema_grammar
from hasten.api.text.chat_template import ChatTemplate, ChatTemplateError
from hasten.api.text.tokenizer import load_tokenizer
from hasten.core.assembly import add_drafters, assemble, make_executor
from hasten.core.binding import ModelBinding
from hasten.core.demand import settle_memory, step_capacity
from hasten.core.engine import Engine
from hasten.core.params import GenerationParams
from hasten.core.step_profile import profile
from hasten.evals.driver import EngineDriver
from hasten.evals.engine_configuration import describe, template_source
from hasten.evals.logits import LogitsReader
from hasten.evals.target import (
    CannotMeasureError,
    Continuation,
    Drafts,
    Footprint,
    Message,
    Prompt,
    Scored,
    Timing,
    TokenScores,
)
from hasten.spec import make_speculator

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hasten.core.memory import MemoryPlan
    from hasten.core.messages import PositionLogprobs
    from hasten.core.options import EngineOptions
    from hasten.core.protocols import Executor
    from hasten.evals.distribution import F32, Distribution

PROFILE_S = 0.3
SPECIAL_TOKENS = ("bos_token", "eos_token", "pad_token")


@dataclass(frozen=True, slots=True)
class Damage:
    """A planted fault, to prove that the gate sees it: see `hasten.evals.faults`.

    `name` becomes part of the configuration, so a damaged run is never taken for a sound one.
    """

    name: str
    binding: Callable[[ModelBinding], ModelBinding] = lambda binding: binding
    executor: Callable[[Executor], Executor] = lambda executor: executor
    template: Callable[[str], str] = lambda source: source


SOUND = Damage("")


class EngineTarget:
    """A model in this process, greedy."""

    def __init__(self, options: EngineOptions, damage: Damage = SOUND) -> None:
        """Load and compile. Raises what building an engine raises."""
        self._binding = damage.binding(ModelBinding.load(options))
        self._options = options
        self._plan = settle_memory(self._binding, options)
        self._tokenizer = load_tokenizer(options.model.tokenizer or options.model.model)
        self._template = damage.template(template_source(options, self._tokenizer))
        engine = _build(self._binding, self._plan, options, damage)
        self._driver = EngineDriver(engine, self._tokenizer, self._binding.model.eos_token_ids)
        self.configuration = describe(
            self._binding.identity(), options, self._tokenizer, self._template, damage.name
        )

    @cached_property
    def _reader(self) -> LogitsReader:
        return LogitsReader(self._binding, self.max_len, self._options.cache.block_size)

    @property
    def max_len(self) -> int:
        return self._plan.max_model_len

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text, add_special_tokens=False))

    def decode(self, token_ids: Sequence[int]) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=False)

    def render(self, messages: Sequence[Message]) -> tuple[int, ...]:
        if not self._template:
            raise CannotMeasureError(f"{self.configuration.name} has no chat template")
        info = self._tokenizer.info
        special = {name: getattr(info, name) for name in SPECIAL_TOKENS if getattr(info, name)}
        try:
            return self.encode(ChatTemplate(self._template, special).render(messages))
        except ChatTemplateError as error:
            raise CannotMeasureError(str(error)) from error

    def distribution(self, scored: Scored) -> Distribution:
        self._check_len(len(scored.token_ids))
        return self._reader.read(scored)

    def layer_outputs(self, token_ids: tuple[int, ...]) -> dict[str, F32]:
        self._check_len(len(token_ids))
        return self._reader.read_layers(token_ids)

    def score(self, scored: Sequence[Scored]) -> list[TokenScores]:
        params = GenerationParams(max_tokens=1, seed=0, temperature=0.0, prompt_logprobs=1)
        for one in scored:
            self._check_len(len(one.token_ids) + 1)
        done = self._driver.run([(one.token_ids, params) for one in scored])
        return [
            _scores(finished.prompt_logprobs, one)
            for one, finished in zip(scored, done, strict=True)
        ]

    def continue_greedily(
        self, prompts: Sequence[Prompt], *, fresh_cache: bool = False
    ) -> list[Continuation]:
        done = self._driver.run(
            [(prompt.token_ids, self._params(prompt)) for prompt in prompts],
            stops=[prompt.stop for prompt in prompts],
            fresh_cache=fresh_cache,
        )
        return [Continuation(tuple(f.token_ids), f.text, f.finish_reason or "") for f in done]

    def time_load(self, prompts: Sequence[Prompt], concurrency: int) -> list[Timing]:
        done = self._driver.run(
            [(prompt.token_ids, self._params(prompt)) for prompt in prompts],
            fresh_cache=True,
            concurrency=concurrency,
        )
        return [Timing(f.sent_s, [at - f.sent_s for at in f.arrivals_s]) for f in done]

    def drafts(self) -> Drafts:
        return self._driver.drafts()

    def footprint(self) -> Footprint:
        plan = self._plan
        return Footprint(plan.weights_bytes, plan.kv_bytes / plan.num_kv_tokens)

    def close(self) -> None:
        self._driver.abort_all()

    def _params(self, prompt: Prompt) -> GenerationParams:
        self._check_len(len(prompt.token_ids) + prompt.max_tokens)
        return GenerationParams(
            max_tokens=prompt.max_tokens,
            seed=0,
            temperature=0.0,
            eos_token_ids=self._binding.model.eos_token_ids,
            ignore_eos=prompt.ignore_eos,
            grammar=_grammar(prompt.schema) if prompt.schema else "",
        )

    def _check_len(self, num_tokens: int) -> None:
        if num_tokens > self.max_len:
            raise CannotMeasureError(
                f"{num_tokens} tokens exceed what {self.configuration.name} holds ({self.max_len})"
            )


def _build(
    binding: ModelBinding, plan: MemoryPlan, options: EngineOptions, damage: Damage
) -> Engine:
    capacity = step_capacity(options, plan.max_model_len)
    executor = make_executor(binding, plan, capacity)
    num_warm_up_runs = binding.backend.num_warm_up_runs
    step_times = profile(executor.measure, capacity, PROFILE_S, num_warm_up_runs)
    drafters = add_drafters(binding, executor, capacity)
    parts = assemble(
        binding, damage.executor(executor), plan, options, step_times, make_speculator, drafters
    )
    return Engine(replace(parts, grammars=make_grammars(options, binding.has_idle_processor)))


def _grammar(schema: str) -> str:
    """What lets through JSON of the schema and nothing else, as for a served request."""
    try:
        return schema_grammar(json.loads(schema))
    except SchemaError as error:
        raise CannotMeasureError(str(error)) from error


def _scores(
    prompt_logprobs: Sequence[PositionLogprobs | None] | None, scored: Scored
) -> TokenScores:
    assert prompt_logprobs is not None
    rows = [row for row in prompt_logprobs[scored.start :] if row is not None]
    assert len(rows) == len(scored.token_ids) - scored.start
    return TokenScores(
        logprobs=[row.token_logprob for row in rows],
        top_ids=[row.top_token_ids[0] for row in rows],
        top_logprobs=[row.top_logprobs[0] for row in rows],
    )
