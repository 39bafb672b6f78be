from __future__ import annotations

import json

import pytest
from hasten.evals.blocks.structured import StructuredBlock
from hasten.evals.pair import Pair
from hasten.evals.rows import DataFolder
from hasten.evals.target import Continuation, Prompt
from hasten.evals.tasks.structured import Kind, fits, parse, structured_rows

from tests.unit.evals.fakes import FakeTarget


@pytest.mark.parametrize("kind", ["schema", "tool"])
def test_right_answers_fit_and_items_depend_on_the_seed_alone(kind: Kind) -> None:
    rows = structured_rows(kind, 24, 2, seed=1)
    assert rows == structured_rows(kind, 24, 2, seed=1)
    assert rows != structured_rows(kind, 24, 2, seed=2)
    assert len({row.answer for row in rows}) > 12
    for row in rows:
        assert [message["role"] for message in row.messages[:2]] == ["system", "user"]
        assert len(row.messages) == 6
        assert fits(parse(f"Of course:\n{row.answer}\nThat is all."), row.schema)


@pytest.mark.parametrize(
    "changed",
    [
        '{"hour": 7}',
        '{"hour": 7, "minute": 5, "second": 0}',
        '{"hour": "7", "minute": 5}',
        '{"hour": true, "minute": 5}',
        '{"city": "Oslo", "unit": "kelvin"}',
    ],
)
def test_arguments_that_do_not_fit_are_seen(changed: str) -> None:
    [row] = structured_rows("tool", 1, 0, seed=1)
    assert fits(parse('{"name": "set_alarm", "arguments": {"hour": 7, "minute": 5}}'), row.schema)
    assert not fits(parse(f'{{"name": "set_alarm", "arguments": {changed}}}'), row.schema)
    assert not fits(parse(f'{{"name": "call_mum", "arguments": {changed}}}'), row.schema)


@pytest.mark.parametrize("text", ["", "no JSON", '{"hour": 7', "[1]"])
def test_what_holds_no_object_parses_to_nothing(text: str) -> None:
    assert parse(text) is None


class Scripted(FakeTarget):
    """Answers every prompt with the same text."""

    def __init__(self, name: str, answer: str) -> None:
        super().__init__(name)
        self.answer = answer
        self.prompts: list[Prompt] = []

    def _continue(self, prompt: Prompt) -> Continuation:
        self.prompts.append(prompt)
        return Continuation((), self.answer, "stop")


def test_form_and_content_are_judged_apart() -> None:
    [row] = structured_rows("tool", 1, 2, seed=1)
    right = Scripted("base", f"Here: {row.answer}")
    wrong = json.loads(row.answer)
    wrong["name"] = "call_mum"
    pair = Pair(right, Scripted("cand", json.dumps(wrong)), DataFolder(), author=right)
    block = StructuredBlock(name="tools", task="tool", num_items=1, constrained=True)
    result = block.observe(pair)
    [item] = result.items
    assert (item.baseline.fits, item.baseline.right) == (True, True)
    assert (item.candidate.fits, item.candidate.right) == (False, False)
    assert json.loads(right.prompts[0].schema) == row.schema
    names = [measure.name for measure in block.measures(result)]
    assert names == ["tools.schema_loss", "tools.accuracy_loss", "tools.likelihood_loss"]
