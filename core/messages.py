"""What crosses between an API process and an engine process: msgspec structs, msgpack on the wire.

Tagged unions, so one decoder per direction. Exercised by `pytest tests/unit/core/test_messages.py`.
"""

from __future__ import annotations

import msgspec
from hasten.core.params import GenerationParams


class AddRequest(msgspec.Struct, frozen=True, kw_only=True, tag="add"):
    """Generate from `prompt_token_ids`; all n samples of a request share its id.

    With `pooling` ("mean", "last") the answer is one output with the embedding of the prompt.
    `client` names who asks, for fairness between clients. What is not finished `deadline_s` after
    its arrival is of no use any more. It has been on its way for `waited_s`, in the server's hands.
    """

    request_id: str
    prompt_token_ids: list[int]
    params: GenerationParams
    priority: int = 0
    cache_salt: str = ""
    client: str = ""
    deadline_s: float | None = None
    waited_s: float = 0.0
    pooling: str = ""


class AbortRequests(msgspec.Struct, frozen=True, tag="abort"):
    """Forget these requests, in whatever phase they are; unknown ids are ignored.

    With a `sample_idx` only that sample of each ends (it met a stop string), and the others go on.
    """

    request_ids: list[str]
    sample_idx: int | None = None


class GetStats(msgspec.Struct, frozen=True, tag="get_stats"):
    """Ask for one `Stats`."""


class GetState(msgspec.Struct, frozen=True, tag="get_state"):
    """Ask for one `EngineState`."""


class Shutdown(msgspec.Struct, frozen=True, tag="shutdown"):
    """End the engine process; requests still open are reported as aborted first."""


EngineInput = AddRequest | AbortRequests | GetStats | GetState | Shutdown


class PositionLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Log-probabilities at one position: of the token there, and of the most likely ones."""

    token_logprob: float
    top_token_ids: list[int]
    top_logprobs: list[float]


class TokenOutput(msgspec.Struct, frozen=True, kw_only=True, tag="tokens"):
    """The tokens one step added to one sample.

    `finish_reason` is "stop" (EOS or a stop token; `stop_token_id` says which and it is the last
    of `token_ids`), "length", "abort", "deadline" (it cannot be met any more), "overload" (it has
    waited longer than is accepted), "error" (this request's numbers are broken) or "grammar" (it
    has become too complex to be followed); None while the sample goes on. `prompt_logprobs` comes
    with the first output of sample 0: one entry per prompt token, the first None. `queue_s`, with
    the first output of each, is how long the sample waited until it was let in. Of `num_drafts`
    that the step verified for the sample, `num_accepted_drafts` were right and are among its
    tokens.
    """

    request_id: str
    token_ids: list[int]
    sample_idx: int = 0
    logprobs: list[PositionLogprobs] | None = None
    prompt_logprobs: list[PositionLogprobs | None] | None = None
    finish_reason: str | None = None
    stop_token_id: int | None = None
    num_cached_tokens: int = 0
    embedding: list[float] | None = None
    queue_s: float | None = None
    num_drafts: int = 0
    num_accepted_drafts: int = 0


class RequestRefused(msgspec.Struct, frozen=True, kw_only=True, tag="refused"):
    """The engine will not run this request; `message` says why, with the numbers.

    `retry_after_s` is given where the request is not at fault but the load: when to try again.
    """

    request_id: str
    message: str
    field: str | None = None
    retry_after_s: float | None = None


class Stats(msgspec.Struct, frozen=True, kw_only=True, tag="stats"):
    """A snapshot of the engine.

    `draft_depths[d]` counts how often a request had d drafts verified in a step, and
    `accepted_drafts[j]` how often the one at position j was right. `speculation_gain` is the
    estimated rate of tokens over that without drafts. `predicted_wait_s` is how long a short prompt
    that came now would wait for its first token. `step_seconds` were spent in the executor, for
    which `predicted_step_seconds` were expected; `phase_seconds` in each part of all steps.
    """

    num_running: int
    num_waiting: int
    num_free_blocks: list[int]
    num_total_blocks: list[int]
    num_preemptions: int
    num_prompt_tokens: int
    num_generated_tokens: int
    num_cached_prompt_tokens: int
    num_recomputed_tokens: int
    num_steps: int
    num_draft_tokens: int = 0
    num_accepted_draft_tokens: int = 0
    draft_depths: list[int] = []
    accepted_drafts: list[int] = []
    speculation_gain: float = 1.0
    predicted_wait_s: float = 0.0
    step_seconds: float = 0.0
    predicted_step_seconds: float = 0.0
    phase_seconds: dict[str, float] = {}


class RequestState(msgspec.Struct, frozen=True, kw_only=True):
    """One sample that has not ended. `depth` is how many drafts its next step verifies."""

    request_id: str
    sample_idx: int
    client: str
    status: str
    priority: int
    num_prompt_tokens: int
    num_output_tokens: int
    num_computed_tokens: int
    num_cached_tokens: int
    num_preemptions: int
    num_blocks: int
    depth: int


class EngineState(msgspec.Struct, frozen=True, kw_only=True, tag="state"):
    """What the engine works on: its requests, those that run first, and its blocks.

    `blocks[group]` has a byte for each block: 0 empty, 1 free with contents that may be matched
    again, 2 held by one request, 3 by several. Large pools are summed up: each byte then stands
    for several blocks, and is the largest of theirs.
    """

    requests: list[RequestState]
    blocks: list[bytes]


class EngineReady(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """Sent once, when the engine can take requests.

    `generation_defaults` are the sampling parameters that the model's authors recommend (from
    `generation_config.json`, by the names of `GenerationParams`). `identity` is what of the model
    may change a result (`ModelBinding.identity`).
    """

    model_name: str
    eos_token_ids: tuple[int, ...]
    generation_defaults: dict[str, float | int]
    max_model_len: int
    vocab_size: int
    num_kv_tokens: int
    config_hash: str
    embedding_width: int | None = None
    identity: dict[str, str] = {}


class EngineFailed(msgspec.Struct, frozen=True, tag="failed"):
    """Sent before the engine process dies of an error."""

    message: str


class OutputBatch(msgspec.Struct, frozen=True, tag="outputs"):
    """Everything that one step has to say."""

    outputs: list[TokenOutput]


EngineOutput = OutputBatch | RequestRefused | Stats | EngineState | EngineReady | EngineFailed
