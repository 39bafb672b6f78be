"""What `hasten quantize` is asked for; its command line is generated from this."""

from __future__ import annotations

from dataclasses import dataclass

from hasten.core.options import ConfigurationError, option

SCHEMES = ("int4-awq", "int4-gptq", "int4-rtn", "int8", "fp8")
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

    def __post_init__(self) -> None:
        _require_one_of("--scheme", self.scheme, SCHEMES)
        _require_one_of("--activations", self.activations, ACTIVATIONS)
        if self.kv_cache is not None:
            _require_one_of("--kv-cache", self.kv_cache, KV_CACHES)
        if self.scheme != "fp8" and self.activations == "static":
            raise ConfigurationError("--activations static goes with --scheme fp8 only")
        if self.scheme == "fp8" and self.group_size is not None:
            raise ConfigurationError("--group-size goes with integer schemes only")
        if self.num_sequences < 1:
            raise ConfigurationError("--num-sequences must be at least 1")
        if self.sequence_len < MIN_SEQUENCE_LEN:
            raise ConfigurationError(f"--sequence-len must be at least {MIN_SEQUENCE_LEN}")


def _require_one_of(flag: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigurationError(f"{flag} must be one of {', '.join(allowed)}, got {value!r}")
