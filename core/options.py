"""Configuration: a few frozen dataclasses that validate themselves.

The command line is generated from them (name, default, help: once, here). Field `max_model_len`
is the flag `--max-model-len`. Cross-checks that need the model live where the engine is built.
Exercised by `pytest tests/unit/core/test_options.py`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from hasten.core.draft_counters import MAX_DEPTH


class ConfigurationError(ValueError):
    """An option, or a combination of options, that cannot be honoured; the message names it."""


def option(default: Any, help_text: str, choices: tuple[str, ...] | None = None) -> Any:
    """A dataclass field that the command line shows as a flag."""
    return field(default=default, metadata={"help": help_text, "choices": choices})


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ConfigurationError(message)


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """Which model, and in which precision."""

    model: str = option(
        "embedded", "model directory, GGUF file, or 'embedded' (SmolLM2-135M-Instruct)"
    )
    model_impl: str = option(
        "native",
        "who computes the model: native, or the transformers library, for models that are not",
        ("native", "transformers"),
    )
    tokenizer: str | None = option(None, "directory or tokenizer.json, if not the model's own")
    chat_template: str | None = option(None, "file with a Jinja chat template, if not the model's")
    served_model_name: str | None = option(None, "name that clients use, if not the model's")
    dtype: str = option("auto", "dtype of activations", ("auto", "bfloat16", "float32"))
    quantization: str | None = option(None, "quantise the weights at load time: fp8, int4 or int8")
    quantize_lm_head: bool = option(
        False, "with --quantization: the head too, and the embedding where it is tied to it"
    )
    max_model_len: int | None = option(None, "longest prompt plus output, in tokens")
    enable_embeddings: bool = option(
        False, "embed prompts too (/v1/embeddings), which makes prompts a little slower"
    )
    seed: int | None = option(None, "seed from which requests without a seed get theirs")

    def __post_init__(self) -> None:
        if self.max_model_len is not None:
            _require(self.max_model_len >= 1, "--max-model-len must be at least 1")


@dataclass(frozen=True, slots=True)
class CacheOptions:
    """The paged KV cache."""

    gpu_memory_utilization: float = option(
        0.9,
        "share of the device's memory to use (on a CPU: of what is free, and for the KV cache no "
        "more than the requests can fill, nor than 2 GiB)",
    )
    kv_cache_memory_bytes: int | None = option(None, "size of the KV cache; overrides the share")
    kv_cache_dtype: str = option(
        "auto", "dtype of the KV cache: auto (as --dtype), bfloat16, float32, fp8"
    )
    block_size: int = option(16, "tokens per block")
    enable_prefix_caching: bool = option(True, "reuse the KV of equal prefixes")
    isolate_cache_by_key: bool = option(
        False, "reuse it within one API key only: what is fast tells nobody what others asked"
    )

    def __post_init__(self) -> None:
        _require(
            0.0 < self.gpu_memory_utilization <= 1.0, "--gpu-memory-utilization must be in (0, 1]"
        )
        _require(
            self.block_size in (8, 16, 32, 64, 128), "--block-size must be 8, 16, 32, 64 or 128"
        )
        if self.kv_cache_memory_bytes is not None:
            _require(self.kv_cache_memory_bytes > 0, "--kv-cache-memory-bytes must be positive")


AIMED_SHARE = 0.6
"""Of the longest stall: steps with long prompts take up to 1.6 times what is predicted.

Where they take longer still, `ItlBudget` learns that.
"""


@dataclass(frozen=True, slots=True)
class SchedulerOptions:
    """How steps are filled."""

    max_num_seqs: int = option(64, "most requests running at once")
    max_num_batched_tokens: int = option(2048, "most tokens computed in one step")
    scheduling_policy: str = option(
        "fcfs",
        "order of waiting requests: fcfs (arrival), priority (the request's), fair (API keys in "
        "turns)",
        ("fcfs", "priority", "fair"),
    )
    max_queue_len: int = option(2048, "most requests waiting; beyond that, 429")
    max_queue_wait_ms: float | None = option(
        None, "longest predicted wait for a first token; beyond that, 429"
    )
    max_stall_ms: float = option(
        250.0,
        "longest pause of a running stream for the prompts of others, which are cut to fit",
    )
    target_itl_ms: float | None = option(
        None, "a lower --max-stall-ms: the time between two tokens of a stream that is aimed at"
    )

    def __post_init__(self) -> None:
        _require(self.max_num_seqs >= 1, "--max-num-seqs must be at least 1")
        _require(
            self.max_num_batched_tokens >= self.max_num_seqs,
            "--max-num-batched-tokens must be at least --max-num-seqs, "
            f"got {self.max_num_batched_tokens} and {self.max_num_seqs}",
        )
        _require(self.max_queue_len >= 1, "--max-queue-len must be at least 1")
        if self.max_queue_wait_ms is not None:
            _require(self.max_queue_wait_ms > 0, "--max-queue-wait-ms must be positive")
        _require(self.max_stall_ms > 0, "--max-stall-ms must be positive")
        if self.target_itl_ms is not None:
            _require(self.target_itl_ms > 0, "--target-itl-ms must be positive")

    @property
    def max_stall_s(self) -> float:
        return self.max_stall_ms / 1000

    @property
    def prompt_limit_s(self) -> float:
        """How long a step may take, as predicted: less than the bound, which real steps keep."""
        return AIMED_SHARE * self.max_stall_s

    @property
    def step_limit_s(self) -> float:
        """The same while requests decode."""
        if self.target_itl_ms is None:
            return self.prompt_limit_s
        return min(self.prompt_limit_s, self.target_itl_ms / 1000)


@dataclass(frozen=True, slots=True)
class ExecutionOptions:
    """What computes."""

    kernels: str = option("auto", "backend of the ops", ("auto", "triton", "cpu", "reference"))
    num_threads: int | None = option(None, "CPU threads; default: the cores of this machine")
    cpu_activations: str = option(
        "int8",
        "what kernels cpu multiply int4 and int8 weights with: int8 (fast), bf16 (more exact)",
        ("int8", "bf16"),
    )
    enforce_eager: bool = option(
        False, "on a GPU: launch every kernel on its own instead of capturing graphs of steps"
    )
    tensor_parallel_size: int = option(1, "devices that share each layer")

    def __post_init__(self) -> None:
        if self.num_threads is not None:
            _require(1 <= self.num_threads <= 1024, "--num-threads must be from 1 to 1024")


SPEC_METHODS = ("ngram", "suffix", "draft", "eagle")


@dataclass(frozen=True, slots=True)
class SpeculationOptions:
    """Speculation: guess tokens and verify them together, which changes speed and no text."""

    spec_method: str = option(
        "off",
        "what guesses: ngram (the request's own text), suffix (other requests' text too), draft "
        "(a smaller model), eagle (a head trained for the model), auto (of all that there are, "
        "whichever promises most)",
        ("off", *SPEC_METHODS, "auto"),
    )
    spec_depth: str = option(
        "auto", "tokens guessed per request and step: auto (as many as pay), or 0 to 16"
    )
    spec_max_depth: int = option(MAX_DEPTH, "most tokens guessed, 0 to 16")
    spec_draft_model: str | None = option(
        None, "smaller model with the same vocabulary, for draft and auto"
    )
    spec_eagle_head: str | None = option(
        None,
        "directory of an EAGLE head, for eagle and auto; default for eagle: the one that is "
        "shipped for the embedded model",
    )

    def __post_init__(self) -> None:
        allowed = range(MAX_DEPTH + 1)
        _require(
            self.spec_depth == "auto" or self.spec_depth in map(str, allowed),
            f"--spec-depth must be auto or from 0 to {MAX_DEPTH}, got {self.spec_depth}",
        )
        _require(self.spec_max_depth in allowed, f"--spec-max-depth must be from 0 to {MAX_DEPTH}")
        _require(
            self.spec_method != "draft" or self.spec_draft_model is not None,
            "--spec-method draft needs a --spec-draft-model",
        )
        for name in ("draft_model", "eagle_head"):
            method = name.partition("_")[0]
            _require(
                getattr(self, f"spec_{name}") is None or self.spec_method in (method, "auto"),
                f"--spec-{name.replace('_', '-')} is of no use with "
                f"--spec-method {self.spec_method}",
            )
        if self.fixed_depth is not None:
            _require(
                self.fixed_depth <= self.spec_max_depth,
                f"--spec-depth {self.spec_depth} exceeds --spec-max-depth {self.spec_max_depth}",
            )

    @property
    def fixed_depth(self) -> int | None:
        """None when the depth follows the load."""
        return None if self.spec_depth == "auto" else int(self.spec_depth)

    @property
    def methods(self) -> tuple[str, ...]:
        """The proposers that are to be made."""
        if self.spec_method == "auto":
            needs = {"draft": self.spec_draft_model, "eagle": self.spec_eagle_head}
            return tuple(name for name in SPEC_METHODS if needs.get(name, "") is not None)
        return () if self.spec_method == "off" else (self.spec_method,)


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Everything an engine is built from."""

    model: ModelOptions = field(default_factory=ModelOptions)
    cache: CacheOptions = field(default_factory=CacheOptions)
    scheduler: SchedulerOptions = field(default_factory=SchedulerOptions)
    execution: ExecutionOptions = field(default_factory=ExecutionOptions)
    speculation: SpeculationOptions = field(default_factory=SpeculationOptions)


_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#\s]+")


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """The HTTP server."""

    host: str = option("127.0.0.1", "address to listen on")
    port: int = option(8000, "port to listen on")
    grpc_port: int | None = option(None, "answer gRPC too, on this port (0: a free one)")
    ssl_certfile: str | None = option(None, "TLS, with the certificate chain in this file")
    ssl_keyfile: str | None = option(None, "its private key")
    api_key: str | None = option(None, "require this bearer token")
    api_key_file: str | None = option(
        None, "require one of the keys of this file (docs/security.md); `hasten key` makes them"
    )
    allowed_origins: str | None = option(
        None, "let pages of these origins call the API (CORS): URLs with commas between, or *"
    )
    enable_auto_tool_choice: bool = option(True, "let models decide when to call tools")
    tool_call_parser: str = option(
        "auto",
        "how the model writes calls: auto (as its chat template says), or by name",
        ("auto", "hermes", "llama3_json", "mistral"),
    )
    reasoning_parser: str = option(
        "auto",
        "tags around what the model thinks: auto (as its chat template says), none, or by name",
        ("auto", "none", "deepseek_r1", "qwen3"),
    )
    restart_engine: bool = option(False, "start the engine again when it dies")
    log_requests: bool = option(False, "log a line for each request, without texts")
    log_prompts: bool = option(False, "log the texts of prompts too")
    log_format: str = option("text", "how log lines look", ("text", "json"))
    shutdown_timeout_s: float = option(30.0, "how long open requests may finish after SIGTERM")
    stall_timeout_s: float = option(60.0, "end an engine that hangs in one step for so long")
    require_eval: str | None = option(
        None, "serve only what has a passing `evals run` record of this suite"
    )
    eval_store: str | None = option(
        None, "folder of those records, if not $HASTEN_EVAL_STORE or the user's own"
    )
    eval_key_file: str | None = option(None, "file with the key that must have signed the record")

    def __post_init__(self) -> None:
        _require(0 <= self.port <= 65535, "--port must be from 0 to 65535")
        if self.grpc_port is not None:
            _require(0 <= self.grpc_port <= 65535, "--grpc-port must be from 0 to 65535")
        _require(
            (self.ssl_certfile is None) == (self.ssl_keyfile is None),
            "--ssl-certfile and --ssl-keyfile go together",
        )
        _require(self.api_key != "", "--api-key must not be empty: anybody would have it")
        for origin in self.origins:
            _require(
                origin == "*" or _ORIGIN.fullmatch(origin) is not None,
                f"--allowed-origins: {origin!r} is no origin, like https://one.example",
            )
        for name in ("eval_store", "eval_key_file"):
            _require(
                self.require_eval is not None or getattr(self, name) is None,
                f"--{name.replace('_', '-')} goes with --require-eval",
            )
        _require(
            self.log_requests or not self.log_prompts, "--log-prompts goes with --log-requests"
        )
        _require(self.shutdown_timeout_s >= 0, "--shutdown-timeout-s must not be negative")
        _require(self.stall_timeout_s > 0, "--stall-timeout-s must be positive")

    @property
    def origins(self) -> tuple[str, ...]:
        """Those allowed."""
        listed = (self.allowed_origins or "").split(",")
        return tuple(origin.strip() for origin in listed if origin.strip())

    @property
    def tls(self) -> tuple[str, str] | None:
        """The files of certificate chain and private key."""
        if self.ssl_certfile is None or self.ssl_keyfile is None:
            return None
        return self.ssl_certfile, self.ssl_keyfile
