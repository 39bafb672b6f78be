"""The whole of head training, from prompts to a head's folder. Stages that are done are skipped.

    OUT/written_prompts.json        those that the model wrote itself
    OUT/text/    the corpus (`generate`)
    OUT/state.pt, OUT/log.jsonl     training so far (`train`)
    OUT/head/    the result (`export`)

Exercised by `pytest tests/cpu/spec/test_training.py`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Protocol

import numpy as np
from hasten.core.loading import load_model
from hasten.core.options import ConfigurationError
from hasten.spec.training.corpus import Corpus
from hasten.spec.training.export import export_head
from hasten.spec.training.generate import TextGenerator, answer_jobs, written_jobs
from hasten.spec.training.train import (
    LOG_FILE,
    HeadTrainer,
    Progress,
    TrainingOptions,
    acceptance_line,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from hasten.core.options import EngineOptions
    from hasten.kernels.step import I32
    from hasten.spec.training.generate import UserTurn
    from hasten.spec.training.options import TrainEagleOptions

TEXT, HEAD, VOCAB, PROMPTS = "text", "head", "draft_ids.json", "written_prompts.json"


class Watcher(Protocol):
    """Told how things go."""

    def wrote_prompts(self, num_prompts: int) -> None: ...

    def generated(self, num_answers: int, num_tokens: int) -> None: ...

    def trained(self, progress: Progress) -> None: ...


def train_eagle(
    engine_options: EngineOptions,
    prompts: Sequence[Sequence[int]],
    options: TrainEagleOptions,
    folder: Path,
    watcher: Watcher,
    turn: UserTurn | None = None,
) -> Path:
    """Generate, train and export; returns the head's folder.

    `turn` is needed where the model is to write prompts too. Raises what building an engine raises,
    and ConfigurationError.
    """
    if options.written_prompts and turn is None:
        raise ConfigurationError("--written-prompts needs a model with a chat template")
    target = load_model(engine_options.model.model)
    layers = options.layers(target.config.num_layers)
    _generate(engine_options, prompts, turn, options, layers, folder, watcher)
    corpus = Corpus(folder / TEXT)
    draft_ids = _draft_ids(corpus, folder, options, target.eos_token_ids, target.config.vocab_size)
    trainer = HeadTrainer(
        target,
        corpus,
        draft_ids,
        len(layers),
        folder,
        TrainingOptions(
            num_epochs=options.num_epochs,
            num_passes=options.num_passes,
            batch_size=options.train_batch_size,
            learning_rate=options.learning_rate,
            seed=options.seed,
        ),
    )
    trainer.run(watcher.trained)
    progress = trainer.progress
    card = {
        "model": target.name,
        "weights": target.content_hash,
        "text": f"{len(corpus)} answers, {corpus.num_tokens} tokens, written by the model",
        "prompts": options.prompts or "the built-in set",
        "prompts_written_by_the_model": options.written_prompts,
        "feature_layers": list(layers),
        "draft_vocab_size": len(draft_ids),
        "epochs": options.num_epochs,
        "steps": progress.step,
        "tokens_seen": progress.num_tokens,
        "seed": options.seed,
        "acceptance_by_position": acceptance_line(progress.validation),
    }
    log = [json.loads(line) for line in (folder / LOG_FILE).read_text().splitlines()]
    export_head(trainer.head, target.config, layers, draft_ids, folder / HEAD, card, log)
    return folder / HEAD


def _generate(
    engine_options: EngineOptions,
    prompts: Sequence[Sequence[int]],
    turn: UserTurn | None,
    options: TrainEagleOptions,
    layers: Sequence[int],
    folder: Path,
    watcher: Watcher,
) -> None:
    finished = folder / TEXT / "finished"
    if finished.exists():
        return
    generator = TextGenerator(engine_options, layers)
    jobs = answer_jobs(prompts, options.num_samples, options.seed)
    if turn is not None and options.written_prompts:
        written = _written(generator, turn, options, folder, watcher)
        jobs += written_jobs(written, options.seed)
    generator.run(jobs, options.max_tokens, folder / TEXT, watcher.generated)
    finished.touch()


def _written(
    generator: TextGenerator,
    turn: UserTurn,
    options: TrainEagleOptions,
    folder: Path,
    watcher: Watcher,
) -> list[list[int]]:
    """The prompts that the model writes: once, then they are those in the folder."""
    path = folder / PROMPTS
    if not path.is_file():
        prompts = generator.write_prompts(
            turn, options.written_prompts, options.max_tokens, options.seed, watcher.wrote_prompts
        )
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(prompts))
        partial.replace(path)
    found: list[list[int]] = json.loads(path.read_text())
    return found


def _draft_ids(
    corpus: Corpus,
    folder: Path,
    options: TrainEagleOptions,
    eos_token_ids: Sequence[int],
    vocab_size: int,
) -> I32:
    """The head's vocabulary: settled once, as the corpus was when training began."""
    path = folder / VOCAB
    if not path.is_file():
        count = min(options.draft_vocab_size, vocab_size)
        path.write_text(json.dumps(corpus.frequent_tokens(count, eos_token_ids).tolist()))
    return np.array(json.loads(path.read_text()), np.int32)
