"""One request whose numbers are broken ends; the others get the text that they get alone."""

from __future__ import annotations

import pytest
from hasten.core.engine import Engine
from hasten.core.inspection import sum_up
from hasten.core.messages import TokenOutput
from hasten.core.params import GenerationParams
from hasten.kernels.step import StepBatch, StepResult

from tests.helpers.engines import (
    VOCAB_SIZE,
    Answers,
    EngineSize,
    ask,
    collect,
    finish_all,
    make_parts,
    mock_engine,
    run_requests,
)
from tests.helpers.mock_model import MockExecutor

POISON = 7
PARAMS = GenerationParams(max_tokens=6, seed=3)


class PoisonedExecutor(MockExecutor):
    """Fails on steps that hold a certain token, as a model does whose activations overflow."""

    def execute(self, batch: StepBatch) -> StepResult:
        if POISON in batch.token_ids:
            raise FloatingPointError("the logits of row 0 hold NaN")
        return super().execute(batch)


def engine(executor: type[MockExecutor] = PoisonedExecutor) -> Engine:
    size = EngineSize()
    return Engine(make_parts(size, executor(size.kv_plan, VOCAB_SIZE), VOCAB_SIZE))


def test_one_broken_request_ends_and_the_others_go_on() -> None:
    params = GenerationParams(max_tokens=6, seed=3, logit_bias={POISON: -100.0}, temperature=0.0)
    good = [ask(f"good{i}", [1, 2, 3 + i], params) for i in range(2)]
    expected = run_requests(mock_engine(), good)
    broken = engine()
    for request in (good[0], ask("bad", [1, POISON], params), good[1]):
        assert broken.add_request(request) is None
    answers: Answers = {}
    first = broken.step()
    assert {o.request_id: o.finish_reason for o in first}["bad"] == "error"
    collect(answers, [output for output in first if output.request_id != "bad"])
    finish_all(broken, answers)
    assert {key: answer.text for key, answer in answers.items()} == {
        key: answer.text for key, answer in expected.items()
    }
    assert broken.stats().num_free_blocks == broken.stats().num_total_blocks


def test_a_fault_of_nobody_ends_the_engine() -> None:
    class Broken(MockExecutor):
        def execute(self, batch: StepBatch) -> StepResult:
            if len(batch.seq_lens) > 1:
                raise FloatingPointError("together they fail")
            return super().execute(batch)

    broken = engine(Broken)
    for name in "ab":
        broken.add_request(ask(name, [1, 2], PARAMS))
    with pytest.raises(FloatingPointError, match="none of its requests alone"):
        broken.step()


def test_alone_it_ends_too() -> None:
    broken = engine()
    broken.add_request(ask("bad", [POISON], PARAMS))
    (output,) = broken.step()
    assert isinstance(output, TokenOutput)
    assert output.finish_reason == "error"
    assert not broken.has_work


def test_a_state_lists_requests_and_blocks() -> None:
    watched = mock_engine()
    watched.add_request(ask("a", list(range(1, 20)), PARAMS))
    watched.add_request(ask("b", [1, 2], PARAMS))
    watched.step()
    state = watched.state()
    assert [(r.request_id, r.status) for r in state.requests] == [
        ("a", "running"),
        ("b", "running"),
    ]
    assert state.requests[0].num_prompt_tokens == 19
    assert state.requests[0].num_blocks == sum(cell == 2 for cell in state.blocks[0]) - 1
    finish_all(watched, {})
    assert set(watched.state().blocks[0]) == {0, 1}


def test_large_pools_are_summed_up() -> None:
    assert sum_up(bytes([0, 1, 2, 3, 0]), 10) == bytes([0, 1, 2, 3, 0])
    assert sum_up(bytes([0, 1, 2, 3, 0]), 3) == bytes([1, 3, 0])
