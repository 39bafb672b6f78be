"""A server at a URL as a target, through the official OpenAI client.

Log-probabilities come from `/v1/completions` with `echo`; a server without it (or one that limits
`logprobs`) cannot be measured token by token, and says so. Tokens are counted by a tokeniser of
ours, which must agree with the server's `/tokenize` where it has one; the chat template is the
server's (`/tokenizer_info`) or else the tokeniser's own. Exercised by `pytest tests/evals`.
"""

from __future__ import annotations

import hashlib
import json
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeVar

import httpx
import numpy as np
import openai
from hasten.api.text.chat_template import ChatTemplate, ChatTemplateError
from hasten.api.text.tokenizer import load_tokenizer
from hasten.core.options import option
from hasten.evals.configuration import Configuration
from hasten.evals.distribution import TopDistribution
from hasten.evals.target import (
    CannotMeasureError,
    Continuation,
    Drafts,
    Footprint,
    Message,
    Prompt,
    Scored,
    TargetError,
    Timing,
    TokenScores,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hasten.evals.distribution import F32, Distribution

T = TypeVar("T")

DRAFT_COUNTERS = (
    ("hasten_num_draft_tokens_total", "hasten_num_accepted_draft_tokens_total"),
    ("vllm:spec_decode_num_draft_tokens_total", "vllm:spec_decode_num_accepted_tokens_total"),
)

NUM_LOGPROBS = 20
PROMPTS_AT_ONCE = 16
PROBE = "Don't tokenise naïvely: 1234567 apples,\n\tstraße 🙂"


@dataclass(frozen=True, slots=True)
class UrlOptions:
    """A server at a URL."""

    tokenizer: str = option("embedded", "model whose tokeniser the server uses")
    model: str | None = option(None, "name of the model; default: the server's first")
    api_key: str = option("", "its bearer token")
    max_len: int = option(4096, "longest prompt plus output, in tokens")
    timeout_s: float = option(120.0, "longest wait for one answer")


class UrlTarget:
    """Any OpenAI-compatible server."""

    def __init__(self, url: str, options: UrlOptions) -> None:
        """Connect. Raises TargetError when nothing answers, LoadError for a wrong tokeniser."""
        root = url.rstrip("/").removesuffix("/v1")
        self._options = options
        self._url = root
        self._client = openai.OpenAI(
            base_url=f"{root}/v1",
            api_key=options.api_key or "none",
            timeout=options.timeout_s,
            max_retries=0,
        )
        self._root = httpx.Client(base_url=root, timeout=options.timeout_s)
        self._tokenizer = load_tokenizer(options.tokenizer)
        self._model = options.model or self._first_model()
        self._check_tokenizer()
        self._template = self._find_template()
        self.configuration = Configuration(
            f"{self._model} at {root}",
            {
                "url": root,
                "model": self._model,
                "server": self._server_version(),
                "chat_template": hashlib.sha256(self._template.encode()).hexdigest(),
                "fingerprint": self._fingerprint(),
            },
        )

    @property
    def max_len(self) -> int:
        return self._options.max_len

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text, add_special_tokens=False))

    def decode(self, token_ids: Sequence[int]) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=False)

    def render(self, messages: Sequence[Message]) -> tuple[int, ...]:
        info = self._tokenizer.info
        names = ("bos_token", "eos_token", "pad_token")
        special = {name: getattr(info, name) for name in names if getattr(info, name)}
        try:
            return self.encode(ChatTemplate(self._template, special).render(messages))
        except ChatTemplateError as error:
            raise CannotMeasureError(str(error)) from error

    def distribution(self, scored: Scored) -> Distribution:
        [logprobs] = self._echo([scored.token_ids], NUM_LOGPROBS)
        rows = range(scored.start, len(scored.token_ids))
        ids = np.full((len(rows), NUM_LOGPROBS + 1), -1, np.int32)
        values = np.full(ids.shape, -np.inf)
        for row, at in enumerate(rows):
            for column, (token_id, value) in enumerate(self._alternatives(scored, logprobs, at)):
                ids[row, column], values[row, column] = token_id, value
        own = [logprobs.token_logprobs[at] for at in rows]
        return TopDistribution(np.array(own, np.float64), ids, values)

    def layer_outputs(self, token_ids: tuple[int, ...]) -> dict[str, F32]:
        raise CannotMeasureError(f"{self._url} does not show its layers ({len(token_ids)} tokens)")

    def score(self, scored: Sequence[Scored]) -> list[TokenScores]:
        scores = []
        for begin in range(0, len(scored), PROMPTS_AT_ONCE):
            some = scored[begin : begin + PROMPTS_AT_ONCE]
            answers = self._echo([one.token_ids for one in some], 1)
            scores += [self._scores(*pair) for pair in zip(some, answers, strict=True)]
        return scores

    def continue_greedily(
        self, prompts: Sequence[Prompt], *, fresh_cache: bool = False
    ) -> list[Continuation]:
        """All at once. A server's cache cannot be emptied from outside."""
        if fresh_cache:
            raise CannotMeasureError("a server's prefix cache cannot be emptied from outside")
        with ThreadPoolExecutor(max_workers=len(prompts)) as pool:
            return list(pool.map(self._continue, prompts))

    def time_load(self, prompts: Sequence[Prompt], concurrency: int) -> list[Timing]:
        begin_s = perf_counter()
        with ThreadPoolExecutor(max_workers=concurrency) as pool:
            return list(pool.map(lambda prompt: self._stream(prompt, begin_s), prompts))

    def drafts(self) -> Drafts:
        """From the server's metrics, where they count drafts."""
        text = self._metrics()
        for drafted, accepted in DRAFT_COUNTERS:
            found = _metric(text, drafted), _metric(text, accepted)
            if found[0] is not None and found[1] is not None:
                return Drafts(int(found[0]), int(found[1]))
        raise CannotMeasureError(f"{self._url}/metrics does not count drafts")

    def footprint(self) -> Footprint:
        raise CannotMeasureError(f"{self._url} does not tell what its model takes of memory")

    def close(self) -> None:
        self._client.close()
        self._root.close()

    def _echo(self, prompts: Sequence[Sequence[int]], num_logprobs: int) -> list[Any]:
        """The `logprobs` object of each echoed prompt."""
        answer = self._ask(
            lambda: self._client.completions.create(
                model=self._model,
                prompt=[list(prompt) for prompt in prompts],
                max_tokens=1,
                temperature=0,
                echo=True,
                logprobs=num_logprobs,
            )
        )
        choices = sorted(answer.choices, key=lambda choice: choice.index)
        for choice, prompt in zip(choices, prompts, strict=True):
            if choice.logprobs is None or len(choice.logprobs.token_logprobs or ()) < len(prompt):
                raise CannotMeasureError(f"{self._url} does not give log-probabilities with echo")
        return [choice.logprobs for choice in choices]

    def _scores(self, scored: Scored, logprobs: Any) -> TokenScores:
        rows = range(scored.start, len(scored.token_ids))
        tops = [self._alternatives(scored, logprobs, at)[0] for at in rows]
        return TokenScores(
            logprobs=[logprobs.token_logprobs[at] for at in rows],
            top_ids=[token_id for token_id, _ in tops],
            top_logprobs=[value for _, value in tops],
        )

    def _alternatives(self, scored: Scored, logprobs: Any, at: int) -> list[tuple[int, float]]:
        """(token id, log-probability) at one place, most likely first, the token's own included.

        Alternatives whose text does not name one token are left out: they stay in the lump.
        """
        found = {
            self._id_of_text[text]: value
            for text, value in logprobs.top_logprobs[at].items()
            if text in self._id_of_text
        }
        found[scored.token_ids[at]] = logprobs.token_logprobs[at]
        return sorted(found.items(), key=lambda item: -item[1])[: NUM_LOGPROBS + 1]

    @cached_property
    def _id_of_text(self) -> dict[str, int]:
        """Token ids by the text that servers show for them, where it is one token's alone."""
        table: dict[str, int] = {}
        shared: set[str] = set()
        for token_id in range(self._tokenizer.vocab_size):
            text = self.decode([token_id])
            if "\ufffd" in text:
                raw = self._tokenizer.token_bytes(token_id)
                text = "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)
            if text in table:
                shared.add(text)
            table[text] = token_id
        return {text: token_id for text, token_id in table.items() if text not in shared}

    def _continue(self, prompt: Prompt) -> Continuation:
        choice = self._ask(lambda: self._create(prompt, logprobs=1)).choices[0]
        texts = [] if choice.logprobs is None else choice.logprobs.tokens or []
        ids = tuple(self._id_of_text.get(text, -1) for text in texts)
        if -1 in ids or not ids:
            ids = self.encode(choice.text)
        return Continuation(ids, choice.text, choice.finish_reason or "")

    def _stream(self, prompt: Prompt, begin_s: float) -> Timing:
        sent_s = perf_counter()
        stream = self._ask(lambda: self._create(prompt, stream=True))
        try:
            arrivals = [
                perf_counter() - sent_s
                for chunk in stream
                if chunk.choices and chunk.choices[0].text
            ]
        except (openai.OpenAIError, httpx.HTTPError) as error:
            raise TargetError(f"{self._url} broke off: {error}") from error
        if not arrivals:
            raise TargetError(f"{self._url} streamed no token")
        return Timing(sent_s - begin_s, arrivals)

    def _create(self, prompt: Prompt, **more: Any) -> Any:
        extra: dict[str, Any] = {"ignore_eos": True} if prompt.ignore_eos else {}
        if prompt.schema:
            schema = {"name": "answer", "schema": json.loads(prompt.schema), "strict": True}
            extra["response_format"] = {"type": "json_schema", "json_schema": schema}
        return self._client.completions.create(
            model=self._model,
            prompt=list(prompt.token_ids),
            max_tokens=prompt.max_tokens,
            temperature=0,
            stop=list(prompt.stop) or None,
            extra_body=extra,
            **more,
        )

    def _ask(self, call: Callable[[], T]) -> T:
        """Turn the client's errors into ours: refusals can be gone round, silence cannot."""
        try:
            return call()
        except (openai.BadRequestError, openai.NotFoundError) as error:
            raise CannotMeasureError(f"{self._url} refuses: {error.message}") from error
        except openai.APITimeoutError as error:
            raise TargetError(
                f"{self._url} did not answer within {self._options.timeout_s:g} s"
            ) from error
        except (openai.OpenAIError, httpx.HTTPError) as error:
            raise TargetError(f"{self._url}: {error}") from error

    def _metrics(self) -> str:
        try:
            response = self._root.get("/metrics")
        except httpx.HTTPError as error:
            raise TargetError(f"{self._url}: {error}") from error
        return response.text if response.is_success else ""

    def _first_model(self) -> str:
        models = self._ask(lambda: self._client.models.list().data)
        if not models:
            raise TargetError(f"{self._url} serves no model")
        return models[0].id

    def _check_tokenizer(self) -> None:
        answer = self._side_door(
            "POST", "/tokenize", {"prompt": PROBE, "add_special_tokens": False}
        )
        if answer is not None and tuple(answer.get("tokens", ())) != self.encode(PROBE):
            raise TargetError(
                f"{self._url} tokenises differently from {self._options.tokenizer!r}: name its "
                "model's tokeniser with --tokenizer"
            )

    def _find_template(self) -> str:
        answer = self._side_door("GET", "/tokenizer_info", None)
        served = None if answer is None else answer.get("chat_template")
        return served or self._tokenizer.chat_template or ""

    def _server_version(self) -> str:
        answer = self._side_door("GET", "/version", None)
        return "unknown" if answer is None else str(answer.get("version", "unknown"))

    def _fingerprint(self) -> str:
        """What the server says of its configuration, if it does."""
        probe = Prompt(self.encode("One, two,"), 1)
        return str(self._ask(lambda: self._create(probe)).system_fingerprint or "unknown")

    def _side_door(self, method: str, path: str, body: Any) -> dict[str, Any] | None:
        """An end point beside OpenAI's; None where the server has none."""
        headers = {"Authorization": f"Bearer {self._options.api_key}"}
        try:
            response = self._root.request(method, path, json=body, headers=headers)
            found = response.json() if response.is_success else None
        except (httpx.HTTPError, ValueError):
            return None
        return found if isinstance(found, dict) else None


def _metric(text: str, name: str) -> float | None:
    """The sum of a metric's samples in Prometheus's text format; None where there is none."""
    pattern = rf"^{re.escape(name)}(?:\{{[^}}]*\}})? (\S+)"
    values = [float(found) for found in re.findall(pattern, text, re.MULTILINE)]
    return sum(values) if values else None
