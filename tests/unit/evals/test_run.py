from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hasten.evals.blocks.chat import ChatResult
from hasten.evals.distribution import FullDistribution
from hasten.evals.gate import Verdict
from hasten.evals.record import Record
from hasten.evals.target import CannotMeasureError, Scored, TargetError

from tests.unit.evals.fakes import FakeTarget
from tests.unit.evals.runs import SUITE, Watched, opened, run


def verdicts(record: Record) -> dict[str, Verdict]:
    return {judgement.name: judgement.verdict for judgement in record.judgements}


def test_a_model_against_a_slightly_noisy_one_passes(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        record = run(store, FakeTarget("base"), FakeTarget("cand", noise=0.01))
    judged = verdicts(record)
    assert record.verdict is Verdict.PASS, judged
    assert judged["text.kl_mean"] is Verdict.PASS
    assert judged["chat.decode_errors"] is Verdict.PASS
    assert judged["sums.accuracy_loss"] is Verdict.INFORMATION
    assert judged["speed.itl_ratio@2"] is Verdict.INFORMATION
    assert set(record.data) >= {"hasten:prompts.jsonl", "hasten:text/story.txt"}


def test_a_noisy_model_fails(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        record = run(store, FakeTarget("base"), FakeTarget("cand", noise=0.5))
    assert record.verdict is Verdict.FAIL
    assert verdicts(record)["text.kl_mean"] is Verdict.FAIL


def test_a_wrong_template_fails_in_chats_alone(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        wrong = FakeTarget("cand", template="{content}\n")
        record = run(store, FakeTarget("base"), wrong)
    failed = {name for name, verdict in verdicts(record).items() if verdict is Verdict.FAIL}
    assert "text.kl_mean" not in failed
    chat = next(b.result for b in record.blocks if isinstance(b.result, ChatResult))
    assert not any(answer.same_prompt for answer in chat.answers)


def test_the_same_run_again_recalls_all_but_timings(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        first = run(store, FakeTarget("base"), FakeTarget("cand", noise=0.01))
    base, cand, watched = FakeTarget("base"), FakeTarget("cand", noise=0.01), Watched()
    with opened(tmp_path) as store:
        second = run(store, base, cand, watcher=watched)
    assert watched.recalled == ["text", "chat", "one_text", "facts", "sums"]
    assert base.num_calls == 16  # the rounds of `speed`
    assert second.judgements == first.judgements


def test_changed_limits_judge_anew_without_measuring(tmp_path: Path) -> None:
    blocks = [msgspec.structs.replace(SUITE.blocks[0], limits={"kl_mean": 1e-9})]
    strict = msgspec.structs.replace(SUITE, blocks=blocks)
    watched = Watched()
    with opened(tmp_path) as store:
        run(store, FakeTarget("base"), FakeTarget("cand", noise=0.01))
        record = run(store, FakeTarget("base"), FakeTarget("cand", noise=0.01), strict, watched)
    assert watched.recalled == ["text"]
    assert record.verdict is Verdict.FAIL


def test_a_target_that_dies_ends_the_run_and_loses_nothing(tmp_path: Path) -> None:
    with opened(tmp_path) as store, pytest.raises(TargetError, match="cand died"):
        run(store, FakeTarget("base"), FakeTarget("cand", noise=0.01, dies_after=15))
    with opened(tmp_path) as store:
        assert not list(tmp_path.glob("records/*"))
        watched = Watched()
        record = run(store, FakeTarget("base"), FakeTarget("cand", noise=0.01), watcher=watched)
    assert watched.recalled == ["text"]
    assert record.verdict is Verdict.PASS


class _Unscorable(FakeTarget):
    """A target that cannot give distributions."""

    def distribution(self, scored: Scored) -> FullDistribution:
        raise CannotMeasureError(f"no logits here for {len(scored.token_ids)} tokens")


def test_what_cannot_be_measured_is_no_pass(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        record = run(store, FakeTarget("base"), _Unscorable("cand"))
    judged = verdicts(record)
    assert judged["text.kl_mean"] is judged["chat.decode_errors"] is Verdict.MISSING
    assert judged["facts.accuracy_loss"] is Verdict.MISSING
    assert record.verdict is Verdict.UNDECIDED
    assert "no logits here" in record.blocks[0].error
