"""What `hasten quantize` is asked for; its command line is generated from this."""

from __future__ import annotations

from dataclasses import dataclass

from hasten.core.options import ConfigurationError, option

SCHEMES = ("int4-awq", "int4-gptq", "int4-rtn", "int8", "fp8")
BACKENDS = {
    "native": SCHEMES,
    "autoawq": ("int4-awq",),
    "optimum": ("int4-gptq",),
    "llmcompressor": SCHEMES,
}
"""Who quantises, and the schemes that each makes."""
KV_BACKENDS = ("native", "llmcompressor")
"""Those that can put scales of the KV cache into a checkpoint."""
ACTIVATIONS = ("dynamic", "static")
KV_CACHES = ("fp8-static",)
MIN_SEQUENCE_LEN = 16


@dataclass(frozen=True, slots=True)
class QuantizeOptions:
    """How to quantise.

    Raises ConfigurationError for values that do not exist or contradict each other.
    """

    scheme: str = option("int4-awq", "how weights are quantised", SCHEMES)
    group_size: int | None = option(
        None, "inputs per scale of integer schemes; default: the largest of 128, 64, 32 that fits"
    )
    activations: str = option("dynamic", "scales of fp8 activations", ACTIVATIONS)
    kv_cache: str | None = option(None, "calibrate the scales of an fp8 KV cache", KV_CACHES)
    calibration: str | None = option(
        None, "text file, or Hugging Face data set; default: text that the model itself writes"
    )
    num_sequences: int = option(32, "calibration sequences")
    sequence_len: int = option(512, "tokens per calibration sequence")
    seed: int = option(0, "seed of the text that the model writes")
    backend: str = option(
        "native",
        "who quantises: this program, or another tool in its own environment",
        (*BACKENDS,),
    )
    environment: str | None = option(
        None, "virtual environment of the other tool; default: one in the cache folder"
    )

    def __post_init__(self) -> None:
        _require_one_of("--scheme", self.scheme, SCHEMES)
        _require_one_of("--activations", self.activations, ACTIVATIONS)
        if self.kv_cache is not None:
            _require_one_of("--kv-cache", self.kv_cache, KV_CACHES)
        if self.scheme != "fp8" and self.activations == "static":
            raise ConfigurationError("--activations static goes with --scheme fp8 only")
        if self.scheme == "fp8" and self.group_size is not None:
            raise ConfigurationError("--group-size goes with integer schemes only")
        self._check_backend()
        if self.num_sequences < 1:
            raise ConfigurationError("--num-sequences must be at least 1")
        if self.sequence_len < MIN_SEQUENCE_LEN:
            raise ConfigurationError(f"--sequence-len must be at least {MIN_SEQUENCE_LEN}")

    def _check_backend(self) -> None:
        _require_one_of("--backend", self.backend, (*BACKENDS,))
        if self.scheme not in BACKENDS[self.backend]:
            able = ", ".join(name for name, schemes in BACKENDS.items() if self.scheme in schemes)
            raise ConfigurationError(
                f"--backend {self.backend} makes {', '.join(BACKENDS[self.backend])}, not "
                f"{self.scheme}; that is made by: {able}"
            )
        if self.kv_cache is not None and self.backend not in KV_BACKENDS:
            raise ConfigurationError(
                f"--kv-cache goes with --backend {' or '.join(KV_BACKENDS)}: the format of "
                f"{self.backend} holds no cache scales"
            )
        if self.backend == "native" and self.environment is not None:
            raise ConfigurationError("--environment goes with other backends than native")


def _require_one_of(flag: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigurationError(f"{flag} must be one of {', '.join(allowed)}, got {value!r}")
