"""What `hasten train-eagle` takes.

Exercised by `pytest tests/unit/spec/test_training_prompts.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from hasten.core.options import ConfigurationError, option


@dataclass(frozen=True, slots=True)
class TrainEagleOptions:
    """Training text and training."""

    prompts: str | None = option(
        None, "file with a prompt a line (text, or JSON with a `prompt`); default: a built-in set"
    )
    num_prompts: int | None = option(None, "use only so many of the prompts")
    written_prompts: int = option(
        0, "prompts that the model writes itself, beside those, each answered once"
    )
    num_samples: int = option(4, "answers to each prompt: one greedy, the others sampled")
    max_tokens: int = option(256, "longest answer")
    feature_layers: str | None = option(
        None, "layers whose inputs the head reads, with commas (default: 2, the middle, the end)"
    )
    draft_vocab_size: int = option(8192, "tokens that the head guesses among, the most frequent")
    num_epochs: int = option(4, "times that the text is learnt from")
    num_passes: int = option(3, "drafting passes that training unrolls")
    train_batch_size: int = option(8, "texts of one training step")
    learning_rate: float = option(8e-4, "its highest value")
    seed: int = option(0, "seed of prompts' order, text and training")

    def __post_init__(self) -> None:
        for name in (
            "num_samples",
            "max_tokens",
            "draft_vocab_size",
            "num_epochs",
            "num_passes",
            "train_batch_size",
        ):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"--{name.replace('_', '-')} must be at least 1")
        if self.written_prompts < 0:
            raise ConfigurationError("--written-prompts must not be negative")
        if self.num_prompts is not None and self.num_prompts < 1:
            raise ConfigurationError("--num-prompts must be at least 1")
        if self.learning_rate <= 0:
            raise ConfigurationError("--learning-rate must be positive")

    def layers(self, num_layers: int) -> tuple[int, ...]:
        """Raises ConfigurationError for layers that the model does not have."""
        if self.feature_layers is None:
            return tuple(dict.fromkeys((min(2, num_layers - 1), num_layers // 2, num_layers)))
        try:
            layers = tuple(int(layer) for layer in self.feature_layers.split(","))
        except ValueError as error:
            raise ConfigurationError("--feature-layers must be numbers with commas") from error
        if not all(0 <= layer <= num_layers for layer in layers) or len(set(layers)) < len(layers):
            raise ConfigurationError(
                f"--feature-layers {self.feature_layers}: the model has {num_layers} layers"
            )
        return layers
