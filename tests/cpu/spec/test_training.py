"""Head training: the unrolled passes against the dense oracle, and a run from prompts to a head."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hasten.core.loading import load_model
from hasten.core.loading.eagle import Target, load_eagle
from hasten.core.models.weights import EMBED, LM_HEAD
from hasten.core.options import (
    ConfigurationError,
    EngineOptions,
    ExecutionOptions,
    ModelOptions,
    SchedulerOptions,
)
from hasten.spec.training.corpus import Corpus
from hasten.spec.training.export import export_head
from hasten.spec.training.generate import TextGenerator, UserTurn, answer_jobs
from hasten.spec.training.head import EagleHead, HeadShape
from hasten.spec.training.options import TrainEagleOptions
from hasten.spec.training.rounding import round_matrix, rounded_weights
from hasten.spec.training.run import train_eagle
from hasten.spec.training.train import Progress, TrainingOptions, schedule, split

from tests.cpu.spec.dense_eagle import DenseEagle
from tests.helpers.hf_folders import write_folder
from tests.helpers.random_models import tiny_config

CONFIG = tiny_config(windows=(None,) * 3)
LAYERS = (1, 2, 3)
OPTIONS = TrainEagleOptions(
    num_samples=2,
    max_tokens=24,
    feature_layers="1,2,3",
    draft_vocab_size=64,
    num_epochs=2,
    train_batch_size=4,
    learning_rate=2e-3,
)


def engine_options(model: Path) -> EngineOptions:
    return EngineOptions(
        model=ModelOptions(model=str(model), max_model_len=64, dtype="float32"),
        scheduler=SchedulerOptions(max_num_seqs=8, max_num_batched_tokens=64),
        execution=ExecutionOptions(kernels="reference"),
    )


def some_prompts(count: int) -> list[list[int]]:
    rng = random.Random(1)
    return [[rng.randrange(96) for _ in range(rng.randint(2, 12))] for _ in range(count)]


class Watcher:
    def __init__(self) -> None:
        self.num_answers = 0
        self.num_prompts = 0
        self.steps: list[int] = []

    def wrote_prompts(self, num_prompts: int) -> None:
        self.num_prompts = num_prompts

    def generated(self, num_answers: int, num_tokens: int) -> None:
        assert num_tokens > 0
        self.num_answers += num_answers

    def trained(self, progress: Progress) -> None:
        self.steps.append(progress.step)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("model"), CONFIG)


def test_unrolled_passes_are_what_drafting_computes(model: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    head = EagleHead(HeadShape(CONFIG, len(LAYERS), 64))
    draft_ids = np.arange(16, 80, dtype=np.int32)
    target = load_model(str(model))
    with torch.no_grad():
        rows = target.weights[LM_HEAD].dequantize()[draft_ids]
        head.lm_head.weight.copy_(round_matrix(torch.from_numpy(rows)))
    export_head(head, CONFIG, LAYERS, draft_ids, tmp_path, {}, [])
    loaded = load_eagle(tmp_path, Target(target.config, target.weights))
    dense = DenseEagle(loaded.config, loaded.weights, loaded.draft_ids)
    rng = np.random.default_rng(0)
    length, num_passes = 12, 4
    tokens = rng.integers(0, 96, length).tolist()
    known = rng.standard_normal((length, 3 * CONFIG.hidden_size))
    known[0] = 0
    embedding = target.weights[EMBED].dequantize()
    with torch.no_grad(), rounded_weights(head):
        unrolled = [
            head.lm_head(hidden).numpy()
            for hidden in head.unroll(
                torch.from_numpy(embedding[tokens]), torch.from_numpy(known).float(), num_passes
            )
        ]
    for slot in (0, 3, 7):  # the last slot with a feature
        features, hidden = known.copy(), np.zeros((length, CONFIG.hidden_size))
        features[slot + 1 :] = 0
        for k in range(num_passes):
            end = slot + k + 1
            out, logits = dense.forward(tokens[:end], features[:end], hidden[:end])
            got = unrolled[k][slot + k]
            error = np.linalg.norm(got - logits[-1]) / np.linalg.norm(logits[-1])
            assert error < 0.03, (slot, k, error)
            if end < length:
                hidden[end] = out[-1]


def test_a_corpus_holds_text_features_and_what_the_target_would_say(
    model: Path, tmp_path: Path
) -> None:
    prompts = some_prompts(10)
    generator = TextGenerator(engine_options(model), LAYERS)
    counted: list[int] = []
    jobs = answer_jobs(prompts, num_samples=2, seed=0)
    generator.run(jobs, 20, tmp_path, lambda _, tokens: counted.append(tokens))
    corpus = Corpus(tmp_path)
    assert 10 <= len(corpus) == len(counted)
    assert corpus.num_tokens == sum(counted)
    for idx in range(len(corpus)):
        passage = corpus[idx]
        prompt_len = passage.prompt_len
        assert passage.tokens[:prompt_len].tolist() in prompts
        assert (passage.top_ids[:prompt_len] == -1).all()
        assert (passage.top_ids[prompt_len:, 0] >= 0).all()
        assert (np.diff(passage.top_probs[prompt_len:].astype(np.float32), axis=1) <= 0).all()
        assert np.abs(passage.features[:-1].astype(np.float32)).sum(axis=1).min() > 0
    again = len(corpus)
    generator.run(jobs, 20, tmp_path, lambda _, tokens: counted.append(tokens))
    assert len(Corpus(tmp_path)) == again, "what is done is not done again"
    held, learnt = split(corpus, TrainingOptions(validation_share=0.3))
    assert sorted(held + learnt) == list(range(len(corpus)))
    known = {corpus.prompt(idx).tobytes() for idx in learnt}
    assert not known & {corpus.prompt(idx).tobytes() for idx in held}


def test_from_prompts_to_a_head_and_on_from_there(model: Path, tmp_path: Path) -> None:
    watcher = Watcher()
    prompts = some_prompts(16)
    first = train_eagle(engine_options(model), prompts, OPTIONS, tmp_path, watcher)
    num_answers, num_steps = watcher.num_answers, watcher.steps[-1]
    assert num_answers > 16
    more = replace(OPTIONS, num_epochs=4)
    train_eagle(engine_options(model), prompts, more, tmp_path, watcher)
    assert watcher.num_answers == num_answers, "the text was kept"
    assert watcher.steps[-1] == 2 * num_steps, "and training went on"
    log = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert log[-1]["loss"] < log[0]["loss"]
    target = load_model(str(model))
    loaded = load_eagle(first, Target(target.config, target.weights))
    assert loaded.config.feature_layers == LAYERS
    assert loaded.draft_ids is not None
    assert 0 in loaded.draft_ids.tolist(), "the end of an answer can be guessed"
    assert "acceptance_by_position" in (first / "README.md").read_text()
    assert (first / "loss.svg").read_text().startswith("<svg")


def test_a_model_writes_prompts_too(model: Path, tmp_path: Path) -> None:
    watcher, turn = Watcher(), UserTurn([5, 6], [7])
    options = replace(OPTIONS, written_prompts=12)
    train_eagle(engine_options(model), some_prompts(4), options, tmp_path, watcher, turn)
    written = json.loads((tmp_path / "written_prompts.json").read_text())
    assert len({tuple(prompt) for prompt in written}) == 12 <= watcher.num_prompts
    assert all(prompt[:2] == [5, 6] and prompt[-1] == 7 for prompt in written)
    done = json.loads((tmp_path / "text" / "done.json").read_text())
    assert sum(name.startswith("written.") for name in done) > 8
    with pytest.raises(ConfigurationError, match="chat template"):
        train_eagle(engine_options(model), some_prompts(4), options, tmp_path / "b", watcher)


def test_a_model_that_never_ends_a_prompt_cannot_write_any(model: Path) -> None:
    generator = TextGenerator(engine_options(model), LAYERS)
    with pytest.raises(ConfigurationError, match="ended 0 prompts"):
        generator.write_prompts(
            UserTurn([5, 6], [7]), 1, max_tokens=2, seed=0, progress=lambda _: None
        )


def test_the_learning_rate_rises_and_falls() -> None:
    rates = [schedule(step, 1000) for step in range(1000)]
    assert rates[0] <= 0.02
    assert max(rates) == pytest.approx(1.0, abs=0.01)
    assert rates[-1] == pytest.approx(0.1, abs=0.01)


def test_layers_that_do_not_exist_are_refused() -> None:
    assert TrainEagleOptions().layers(30) == (2, 15, 30)
    for wrong in ("1,31", "a", "1,1"):
        with pytest.raises(ConfigurationError, match="feature-layers"):
            TrainEagleOptions(feature_layers=wrong).layers(30)
