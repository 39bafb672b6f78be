from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from hasten.evals.distribution import FullDistribution
from hasten.evals.report.diagnosis import diagnose
from hasten.evals.target import Continuation, Prompt

from tests.unit.evals.fakes import FakeTarget
from tests.unit.evals.runs import opened, run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hasten.evals.target import Scored


class WorseLater(FakeTarget):
    """Damage that grows with the position, as wrong rotary frequencies give."""

    def distribution(self, scored: Scored) -> FullDistribution:
        good = super().distribution(scored)
        rng = np.random.default_rng(len(scored.token_ids))
        positions = np.arange(scored.start, len(scored.token_ids))[:, None]
        noise = rng.normal(size=good.logprobs.shape) * (positions > 80)
        return FullDistribution.from_logits(
            (good.logprobs + noise).astype(np.float32), good.token_ids.tolist()
        )


class SlipsWhileDecoding(FakeTarget):
    """Chooses a wrong token now and then, but scores rightly."""

    def continue_greedily(
        self, prompts: Sequence[Prompt], *, fresh_cache: bool = False
    ) -> list[Continuation]:
        answers = []
        for one in super().continue_greedily(prompts, fresh_cache=fresh_cache):
            ids = list(one.token_ids)
            ids[len(ids) // 2] = 65
            answers.append(Continuation(tuple(ids), one.text, one.finish_reason))
        return answers


def where(tmp_path: Path, candidate: FakeTarget) -> str:
    with opened(tmp_path) as store:
        return " / ".join(diagnose(run(store, FakeTarget("base"), candidate)))


def test_growing_damage_points_at_positions(tmp_path: Path) -> None:
    assert "from about position 80: look at positions" in where(tmp_path, WorseLater("cand"))


def test_wrong_tokens_point_at_decoding(tmp_path: Path) -> None:
    assert "decoding is at fault" in where(tmp_path, SlipsWhileDecoding("cand"))


def test_other_prompts_point_at_the_template(tmp_path: Path) -> None:
    found = where(tmp_path, FakeTarget("cand", template="{content}", noise=0.3))
    assert "render 10 of 10 chat prompts differently" in found


def test_damage_everywhere_points_at_weights(tmp_path: Path) -> None:
    found = where(tmp_path, FakeTarget("cand", noise=0.5))
    assert "damage at all positions" in found
    assert "look at weights" in found


def test_parting_at_the_first_layer_points_at_what_all_share(tmp_path: Path) -> None:
    candidate = FakeTarget("cand", noise=0.5)
    candidate.layer_noise = 0.3
    assert "it is the first): look at what all layers share" in where(tmp_path, candidate)
