"""Tasks whose answers are written out and graded: word problems, instructions, programs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import msgspec
from hasten.evals.blocks.accuracy import ItemResult, accuracy_measures
from hasten.evals.blocks.limits import check_limits
from hasten.evals.rows import InstructionRow, MathRow, ProgramRow
from hasten.evals.target import CannotMeasureError, Prompt
from hasten.evals.tasks.graders import grade_number
from hasten.evals.tasks.instructions import UNCHECKABLE, grade_instructions
from hasten.evals.tasks.sandbox import passes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hasten.evals.gate import Measure
    from hasten.evals.pair import Pair
    from hasten.evals.target import Continuation, Message, Target

_ITEMS_AT_ONCE = 32


class GenerationResult(msgspec.Struct, frozen=True, tag="generation"):
    items: list[ItemResult]


@dataclass(frozen=True, slots=True)
class _Task:
    """What is asked: a conversation, or (as text) the beginning of a program; and who grades it."""

    name: str
    asked: str | list[Message]
    grade: Callable[[str], bool]


class GenerationBlock(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag_field="kind",
    tag="generation",
    forbid_unknown_fields=True,
):
    """The first `num_items` rows of a .jsonl file, answered greedily and graded.

    `shape` is `number` (GSM8K's rows; `examples` names a file of `num_examples` solved ones, shown
    as earlier turns), `instructions` (IFEval's rows) or `program` (HumanEval's rows; runs code).
    """

    name: str
    shape: Literal["number", "instructions", "program"]
    source: str
    num_items: int
    max_tokens: int
    examples: str | None = None
    num_examples: int = 0
    limits: dict[str, float] = {}

    def __post_init__(self) -> None:
        check_limits(self.name, self.limits, ("accuracy_loss",))
        if (self.examples is None) != (self.num_examples == 0):
            raise ValueError(f"{self.name}: examples and num_examples belong together")
        if self.examples is not None and self.shape != "number":
            raise ValueError(f"{self.name}: examples are for shape 'number'")

    def observe(self, pair: Pair) -> GenerationResult:
        if self.shape == "program" and not pair.allow_code:
            raise CannotMeasureError("runs code that a model wrote: only with --allow-code")
        tasks = self._tasks(pair)
        base, cand = (self._answers(pair, target, tasks) for target in pair.both)
        items = [
            ItemResult(
                name=task.name,
                baseline=task.grade(one.text),
                candidate=task.grade(other.text),
                detail=f"{one.text[:200]!r} | {other.text[:200]!r}",
            )
            for task, one, other in zip(tasks, base, cand, strict=True)
        ]
        return GenerationResult(items)

    def measures(self, result: GenerationResult) -> list[Measure]:
        return accuracy_measures(self.name, result.items, self.limits)

    def _tasks(self, pair: Pair) -> list[_Task]:
        if self.shape == "number":
            return self._number_tasks(pair)
        if self.shape == "instructions":
            rows = pair.data.rows(self.source, InstructionRow)
            checkable = [
                row for row in rows if not UNCHECKABLE.intersection(row.instruction_id_list)
            ]
            return [_instruction_task(row) for row in checkable[: self.num_items]]
        return [
            _program_task(row) for row in pair.data.rows(self.source, ProgramRow, self.num_items)
        ]

    def _number_tasks(self, pair: Pair) -> list[_Task]:
        examples: list[Message] = []
        if self.examples is not None:
            for example in pair.data.rows(self.examples, MathRow, self.num_examples):
                examples.append({"role": "user", "content": example.question})
                examples.append({"role": "assistant", "content": example.answer})
        return [
            _number_task(f"{self.name}/{number}", row, examples)
            for number, row in enumerate(pair.data.rows(self.source, MathRow, self.num_items))
        ]

    def _answers(self, pair: Pair, target: Target, tasks: Sequence[_Task]) -> list[Continuation]:
        answers: list[Continuation] = []
        for begin in range(0, len(tasks), _ITEMS_AT_ONCE):
            pair.progress.advance(begin, len(tasks))
            some = tasks[begin : begin + _ITEMS_AT_ONCE]
            answers.extend(target.continue_greedily([self._prompt(target, task) for task in some]))
        return answers

    def _prompt(self, target: Target, task: _Task) -> Prompt:
        if isinstance(task.asked, str):
            return Prompt(target.encode(task.asked), self.max_tokens, _PROGRAM_STOPS)
        return Prompt(target.render(task.asked), self.max_tokens)


_PROGRAM_STOPS = ("\nclass ", "\ndef ", "\n#", "\nif ", "\nprint(", "\n@")
"""What comes after a finished function."""


def _number_task(name: str, row: MathRow, examples: Sequence[Message]) -> _Task:
    asked = [*examples, {"role": "user", "content": row.question}]
    return _Task(name, asked, lambda answer: grade_number(answer, row.answer))


def _instruction_task(row: InstructionRow) -> _Task:
    return _Task(
        str(row.key),
        [{"role": "user", "content": row.prompt}],
        lambda answer: grade_instructions(answer, row.instruction_id_list, row.kwargs),
    )


def _program_task(row: ProgramRow) -> _Task:
    test = f"{row.test}\ncheck({row.entry_point})\n"
    return _Task(row.task_id, row.prompt, lambda body: passes(f"{row.prompt}{body}\n{test}"))
