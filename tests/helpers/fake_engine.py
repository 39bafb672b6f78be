"""An engine without a model: it answers each prompt with the prompt again, round and round.

With the byte tokeniser beside it, what a client sends is what it gets back, so tests of the API
can say exactly which text must come out.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec
from hasten.api.text.tokenizer import TokenizerInfo
from hasten.core.messages import (
    AddRequest,
    EngineReady,
    EngineState,
    PositionLogprobs,
    RequestRefused,
    RequestState,
    Stats,
    TokenOutput,
)
from hasten.core.options import EngineOptions

NUM_BYTES = 256
EOS_ID = 256
MARK_ID = 257
VOCAB_SIZE = 258
MAX_MODEL_LEN = 4096
DIE_TEXT = "die!"
"""A prompt that ends with this raises in the next step."""

TEMPLATE = (
    "{% for message in messages %}<{{ message.role }}>{{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<{{ assistant_name or 'assistant' }}>{% endif %}"
)


class ByteTokenizer:
    """One token per byte, and two special ones."""

    info = TokenizerInfo(eos_token="<eos>", bos_token="<mark>", chat_template=TEMPLATE)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return ([MARK_ID] if add_special_tokens else []) + list(text.encode())

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id]) if token_id < NUM_BYTES else b""

    def decode(self, token_ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        names = {} if skip_special_tokens else {EOS_ID: b"<eos>", MARK_ID: b"<mark>"}
        pieces = (names.get(token_id, self.token_bytes(token_id)) for token_id in token_ids)
        return b"".join(pieces).decode(errors="replace")


@dataclass(slots=True)
class _Sample:
    request: AddRequest
    sample_idx: int
    num_tokens: int = 0


@dataclass(slots=True)
class FakeEngine:
    """Gives every sample one token per step."""

    step_s: float = 0.0
    samples: list[_Sample] = field(default_factory=list)
    num_steps: int = 0

    @property
    def has_work(self) -> bool:
        return bool(self.samples)

    def add_request(self, request: AddRequest) -> RequestRefused | None:
        total = len(request.prompt_token_ids) + request.params.max_tokens
        if total > MAX_MODEL_LEN:
            return RequestRefused(
                request_id=request.request_id,
                field="prompt" if len(request.prompt_token_ids) >= MAX_MODEL_LEN else "max_tokens",
                message=f"{total} tokens are more than {MAX_MODEL_LEN}",
            )
        self.samples += [_Sample(request, i) for i in range(request.params.n)]
        return None

    def abort(self, request_ids: Iterable[str], sample_idx: int | None = None) -> None:
        gone = set(request_ids)
        self.samples = [
            sample
            for sample in self.samples
            if sample.request.request_id not in gone or sample_idx not in (None, sample.sample_idx)
        ]

    def abort_all(self) -> list[TokenOutput]:
        outputs = [
            TokenOutput(
                request_id=sample.request.request_id,
                token_ids=[],
                sample_idx=sample.sample_idx,
                finish_reason="abort",
            )
            for sample in self.samples
        ]
        self.samples = []
        return outputs

    def step(self) -> list[TokenOutput]:
        time.sleep(self.step_s)
        self.num_steps += 1
        outputs = [self._advance(sample) for sample in self.samples]
        self.samples = [
            sample
            for sample, output in zip(self.samples, outputs, strict=True)
            if output.finish_reason is None
        ]
        return outputs

    def _advance(self, sample: _Sample) -> TokenOutput:
        request, params = sample.request, sample.request.params
        prompt = request.prompt_token_ids
        if prompt[-len(DIE_TEXT) :] == list(DIE_TEXT.encode()):
            raise RuntimeError("told to die")
        if request.pooling:
            return TokenOutput(
                request_id=request.request_id,
                token_ids=[],
                finish_reason="stop",
                embedding=embedding_of(prompt, request.pooling),
            )
        token_id = prompt[sample.num_tokens % len(prompt)]
        sample.num_tokens += 1
        is_stop = token_id in params.terminal_token_ids and sample.num_tokens > params.min_tokens
        is_full = sample.num_tokens == params.max_tokens
        wants_prompt = params.prompt_logprobs is not None and sample.num_tokens == 1
        return TokenOutput(
            request_id=request.request_id,
            token_ids=[token_id],
            sample_idx=sample.sample_idx,
            logprobs=None if params.logprobs is None else [_logprobs(token_id, params.logprobs)],
            prompt_logprobs=_prompt_logprobs(prompt)
            if wants_prompt and sample.sample_idx == 0
            else None,
            finish_reason="stop" if is_stop else "length" if is_full else None,
            stop_token_id=token_id if is_stop else None,
            num_cached_tokens=3,
        )

    def stats(self) -> Stats:
        return Stats(
            num_running=len(self.samples),
            num_waiting=0,
            num_free_blocks=[100 - len(self.samples)],
            num_total_blocks=[100],
            num_preemptions=0,
            num_prompt_tokens=0,
            num_generated_tokens=0,
            num_cached_prompt_tokens=0,
            num_recomputed_tokens=0,
            num_steps=self.num_steps,
        )

    def state(self) -> EngineState:
        blocks = bytes([2] * len(self.samples) + [0] * (100 - len(self.samples)))
        return EngineState(requests=[_state(sample) for sample in self.samples], blocks=[blocks])

    def ready_message(self) -> EngineReady:
        return EngineReady(
            model_name="echo",
            eos_token_ids=(EOS_ID,),
            generation_defaults={"temperature": 0.5},
            max_model_len=MAX_MODEL_LEN,
            vocab_size=VOCAB_SIZE,
            num_kv_tokens=1600,
            config_hash="fp_echo",
            embedding_width=3,
        )


@dataclass(slots=True)
class RememberingEngine(FakeEngine):
    """Its cache holds the prompts it was asked, each with the salt that came with it."""

    seen: list[tuple[str, list[int]]] = field(default_factory=list)

    def add_request(self, request: AddRequest) -> RequestRefused | None:
        self.seen.append((request.cache_salt, request.prompt_token_ids))
        return FakeEngine.add_request(self, request)

    def _advance(self, sample: _Sample) -> TokenOutput:
        request = sample.request
        times = self.seen.count((request.cache_salt, request.prompt_token_ids))
        output = FakeEngine._advance(self, sample)
        return msgspec.structs.replace(
            output, num_cached_tokens=len(request.prompt_token_ids) - 1 if times > 1 else 0
        )


def _state(sample: _Sample) -> RequestState:
    return RequestState(
        request_id=sample.request.request_id,
        sample_idx=sample.sample_idx,
        client=sample.request.client,
        status="running",
        priority=sample.request.priority,
        num_prompt_tokens=len(sample.request.prompt_token_ids),
        num_output_tokens=sample.num_tokens,
        num_computed_tokens=len(sample.request.prompt_token_ids) + sample.num_tokens,
        num_cached_tokens=3,
        num_preemptions=0,
        num_blocks=1,
        depth=0,
    )


def embedding_of(prompt: list[int], pooling: str) -> list[float]:
    """The fake's embedding: its first number tells how it was pooled."""
    return [3.0 if pooling == "mean" else 4.0, float(len(prompt)), float(prompt[-1])]


def _logprobs(token_id: int, num_top: int) -> PositionLogprobs:
    top = [(token_id + i) % NUM_BYTES for i in range(num_top)]
    return PositionLogprobs(-0.5, top, [-0.5 * (i + 1) for i in range(num_top)])


def _prompt_logprobs(prompt: list[int]) -> list[PositionLogprobs | None]:
    return [None, *(_logprobs(token_id, 1) for token_id in prompt[1:])]


def build_fake(options: EngineOptions) -> FakeEngine:
    """As fast as it goes."""
    return FakeEngine()


def build_slow(options: EngineOptions) -> FakeEngine:
    """20 ms per step, so that requests can be met while they run."""
    return FakeEngine(step_s=0.02)


def build_remembering(options: EngineOptions) -> FakeEngine:
    """As slow, with a cache of prompts."""
    return RememberingEngine(step_s=0.02)


def build_endless(options: EngineOptions) -> FakeEngine:
    """A model that is not done loading before anybody gives up."""
    time.sleep(600)
    return FakeEngine()


def build_sluggish(options: EngineOptions) -> FakeEngine:
    """A model that takes a while to load."""
    time.sleep(0.5)
    return FakeEngine()


def build_broken(options: EngineOptions) -> FakeEngine:
    """A model that cannot be loaded."""
    raise ValueError("model.gguf: tensor 'output.weight' is truncated")


def load_byte_tokenizer(options: EngineOptions) -> ByteTokenizer:
    return ByteTokenizer()
