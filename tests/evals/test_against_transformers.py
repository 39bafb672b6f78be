"""Log-likelihoods and task accuracies are those of a plain loop over transformers.

`HASTEN_EVAL_ROWS` sets how many rows of each set are compared (500 takes minutes).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hasten.core.loading import load_model
from hasten.evals.blocks.choice import ChoiceBlock, split_text
from hasten.evals.blocks.continuation import ContinuationBlock
from hasten.evals.cli.targets import engine_options
from hasten.evals.engine_target import EngineTarget
from hasten.evals.pair import Pair
from hasten.evals.rows import ChoiceRow, ContinuationRow, DataFolder
from hasten.evals.target import Scored

from tests.helpers.embedded_oracle import transformers_model

ROOT = Path(__file__).parents[2]
NUM_ROWS = int(os.environ.get("HASTEN_EVAL_ROWS", "4"))
TIE = 2e-3
"""Items whose two best scores are closer than this may go either way, by rounding."""

Score = Callable[[Scored], float]


@pytest.fixture(scope="module")
def target(flags: str) -> EngineTarget:
    return EngineTarget(engine_options("embedded", f"{flags} --dtype float32 --kernels reference"))


@pytest.fixture(scope="module")
def oracle(flags: str) -> Any:
    assert flags
    return transformers_model(load_model("embedded"))


@pytest.fixture(scope="module")
def score(oracle: Any) -> Score:
    def total(scored: Scored) -> float:
        return float(oracle_logprobs(oracle, scored).sum())

    return total


@pytest.fixture(scope="module")
def data() -> DataFolder:
    root = Path(os.environ.get("HASTEN_DATA", ROOT.parent / "shared")) / "data"
    if not root.is_dir():
        pytest.skip("no data: HASTEN_DATA names no folder")
    return DataFolder(root)


def oracle_logprobs(oracle: Any, scored: Scored) -> torch.Tensor:
    ids = torch.tensor([scored.token_ids])
    with torch.inference_mode():
        logits = oracle(ids).logits[0, scored.start - 1 : -1].float()
    logprobs: torch.Tensor = logits.log_softmax(dim=-1)
    return logprobs.gather(1, ids[0, scored.start :, None])[:, 0]


def test_log_likelihoods_equal_a_full_forward_pass(target: EngineTarget, oracle: Any) -> None:
    texts = DataFolder().texts("hasten:text")
    asked = [Scored(target.encode(text)[:128], 1) for _, text in texts[:2]]
    for one, ours in zip(asked, target.score(asked), strict=True):
        theirs = oracle_logprobs(oracle, one).numpy()
        np.testing.assert_allclose(ours.logprobs, theirs, atol=1e-4)
        full = target.distribution(one)
        np.testing.assert_allclose(full.token_logprobs, theirs, atol=1e-4)
        assert np.exp(-full.token_logprobs.mean()) == pytest.approx(np.exp(-theirs.mean()), 1e-4)


def test_perplexity_of_wikitext_equals_that_of_transformers(
    target: EngineTarget, oracle: Any, data: DataFolder
) -> None:
    [(_, text)] = data.texts("perplexity/wikitext2_raw_test.txt")
    ids = target.encode(text[: 500 * NUM_ROWS])
    windows = [Scored(ids[at : at + 256], 1) for at in range(0, len(ids) - 255, 256)]
    ours = np.concatenate([target.distribution(one).token_logprobs for one in windows])
    theirs = np.concatenate([oracle_logprobs(oracle, one).numpy() for one in windows])
    assert np.exp(-ours.mean()) == pytest.approx(np.exp(-theirs.mean()), rel=1e-3)


ARC_EASY = ChoiceBlock(
    name="arc", source="choice/arc_easy.jsonl", suffix="\nAnswer:", num_items=NUM_ROWS
)
HELLASWAG = ChoiceBlock(
    name="hs", source="choice/hellaswag_val_2000.jsonl", per_byte=True, num_items=NUM_ROWS
)


@pytest.mark.parametrize("block", [ARC_EASY, HELLASWAG], ids=["arc", "hellaswag"])
def test_choices_equal_a_plain_loop(
    target: EngineTarget, score: Score, data: DataFolder, block: ChoiceBlock
) -> None:
    items = block.observe(Pair(target, target, data, target)).items
    rows = data.rows(block.source, ChoiceRow, NUM_ROWS)
    for item, row in zip(items, rows, strict=True):
        ranked = [
            score(split_text(target, row.query + block.suffix, f" {choice}"))
            / (len(choice.encode()) if block.per_byte else 1)
            for choice in row.choices
        ]
        best, second = sorted(ranked, reverse=True)[:2]
        if best - second > TIE:
            assert item.candidate == (ranked.index(best) == row.gold), item


def test_continuations_equal_a_plain_loop(
    target: EngineTarget, oracle: Any, data: DataFolder
) -> None:
    source = "choice/lambada_openai.jsonl"
    block = ContinuationBlock(name="b", source=source, num_items=NUM_ROWS)
    items = block.observe(Pair(target, target, data, target)).items
    rows = data.rows(source, ContinuationRow, NUM_ROWS)
    for item, row in zip(items, rows, strict=True):
        asked = split_text(target, row.context, f" {row.continuation}")
        with torch.inference_mode():
            logits = oracle(torch.tensor([asked.token_ids])).logits[0, asked.start - 1 : -1]
        top = logits.topk(2, dim=-1).values
        if bool((top[:, 0] - top[:, 1] > TIE).all()):
            greedy = logits.argmax(dim=-1).tolist() == list(asked.token_ids[asked.start :])
            assert item.candidate == greedy, item
