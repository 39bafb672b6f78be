"""Requests with a grammar: held until it is compiled, masked, and ended when it fails."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from hasten.core.engine import Engine
from hasten.core.params import GenerationParams
from hasten.core.protocols import MaskJob
from hasten.core.request import Request, RequestId
from hasten.kernels.step import I32, U32

from tests.helpers.engines import (
    VOCAB_SIZE,
    Answers,
    EngineSize,
    ask,
    collect,
    finish_all,
    make_parts,
    mock_engine,
)
from tests.helpers.mock_model import MockExecutor

PARAMS = GenerationParams(max_tokens=4, seed=1, grammar="anything", temperature=0.0)


@dataclass(slots=True)
class ScriptedGrammars:
    """Compiles when told to; allows everything."""

    ready: set[str] = field(default_factory=set)
    failures: dict[str, str] = field(default_factory=dict)
    prepared: list[str] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)
    num_waits: int = 0
    num_rows: list[int] = field(default_factory=list)

    def prepare(self, request: Request) -> None:
        self.prepared.append(request.group_id)

    def is_ready(self, request_id: RequestId) -> bool:
        return request_id.partition("/")[0] in self.ready

    def wait(self, timeout_s: float) -> None:
        assert timeout_s < 1
        self.num_waits += 1

    def failure(self, request_id: RequestId) -> str | None:
        return self.failures.get(request_id.partition("/")[0])

    def begin_masks(self, jobs: Sequence[MaskJob], masks: U32, ready: I32) -> None:
        for job in jobs:
            assert job.first_row + len(job.drafts) < len(masks)
        self.num_rows.append(len(masks))
        masks[:] = np.uint32(0xFFFFFFFF)
        ready[0] = 1

    def forget(self, request_id: RequestId) -> None:
        self.forgotten.append(request_id.partition("/")[0])


def engine_with(grammars: ScriptedGrammars) -> Engine:
    size = EngineSize()
    parts = make_parts(size, MockExecutor(size.kv_plan, VOCAB_SIZE), VOCAB_SIZE, None)
    return Engine(replace(parts, grammars=grammars))


def test_a_request_waits_for_its_grammar_and_nobody_else_does() -> None:
    grammars = ScriptedGrammars()
    engine = engine_with(grammars)
    free = replace_grammar("")
    for request in (ask("held", [1, 2], PARAMS), ask("free", [1, 2], free)):
        assert engine.add_request(request) is None
    answers: Answers = {}
    for _ in range(20):
        collect(answers, engine.step())
    assert set(answers) == {("free", 0)}
    assert grammars.num_waits > 0
    assert engine.has_work
    grammars.ready.add("held")
    finish_all(engine, answers)
    assert answers["held", 0].finish_reason == "length"
    assert answers["held", 0].token_ids == answers["free", 0].token_ids
    assert grammars.prepared == ["held"]
    assert set(grammars.num_rows) == {1}
    assert "held" in grammars.forgotten


def replace_grammar(grammar: str) -> GenerationParams:
    return GenerationParams(max_tokens=4, seed=1, grammar=grammar, temperature=0.0)


def test_a_grammar_that_fails_ends_its_request_alone() -> None:
    grammars = ScriptedGrammars(ready={"bad", "good"}, failures={"bad": "too complex"})
    engine = engine_with(grammars)
    for name in ("bad", "good"):
        assert engine.add_request(ask(name, [1, 2], PARAMS)) is None
    answers: Answers = {}
    finish_all(engine, answers)
    assert answers["bad", 0].finish_reason == "grammar"
    assert answers["good", 0].finish_reason == "length"


def test_a_held_request_can_be_aborted() -> None:
    grammars = ScriptedGrammars()
    engine = engine_with(grammars)
    assert engine.add_request(ask("held", [1, 2], PARAMS)) is None
    engine.abort(["held"])
    assert not engine.has_work
    grammars.ready.add("held")
    assert engine.step() == []
    assert grammars.forgotten == ["held"]


def test_every_sample_has_its_own() -> None:
    grammars = ScriptedGrammars(ready={"both"})
    engine = engine_with(grammars)
    params = GenerationParams(max_tokens=2, seed=1, grammar="anything", n=2)
    assert engine.add_request(ask("both", [1, 2], params)) is None
    answers: Answers = {}
    finish_all(engine, answers)
    assert set(answers) == {("both", 0), ("both", 1)}
    assert grammars.prepared == ["both", "both"]


def test_an_engine_without_grammars_refuses() -> None:
    refused = mock_engine().add_request(ask("r", [1, 2], PARAMS))
    assert refused is not None
    assert refused.message == "this engine is built without structured output"
