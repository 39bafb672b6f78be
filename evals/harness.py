"""Tasks of lm-evaluation-harness on our targets: its prompts and its grading, our engine.

Needs the package `lm_eval`, which is no dependency: whoever imports this module must be ready for
ModuleNotFoundError. Everything is greedy and goes through `Target`, so a stored run or a URL serves
as well as an engine of this process. Exercised by `make lm-eval`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hasten.evals.blocks.choice import split_text
from hasten.evals.canonical import content_hash
from hasten.evals.target import CannotMeasureError, Prompt, Scored
from lm_eval import simple_evaluate
from lm_eval.api.model import LM
from lm_eval.tasks import TaskManager
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from hasten.evals.pair import Progress
    from hasten.evals.target import Target, TokenScores

EMPTY_CONTEXT = "\n"
"""What stands before a text that has nothing before it: something must, to predict its start."""
MAX_ANSWER_TOKENS = 256
"""For tasks that do not say how long an answer may be; the harness's own default."""
REQUESTS_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class TaskScores:
    """Each item's metric, oriented so that more is better; `data_hash` is over its documents."""

    values: dict[str, float]
    data_hash: str


class TargetModel(LM):  # type: ignore[misc]  # lm_eval may be absent, and has no types
    """A target as the harness sees a model."""

    def __init__(self, target: Target, progress: Progress) -> None:
        super().__init__()
        self._target = target
        self._progress = progress

    def loglikelihood(self, requests: list[Any]) -> list[tuple[float, bool]]:
        """(log-likelihood of the continuation, whether it is what greedy decoding would write)."""
        scores = self._score([self._scored(*request.args) for request in requests])
        return [(score.total, score.all_greedy()) for score in scores]

    def loglikelihood_rolling(self, requests: list[Any]) -> list[float]:
        """Of whole texts, in windows where they are longer than the target holds."""
        totals = []
        for request in requests:
            [text] = request.args
            windows = self._score(self._windows(text))
            totals.append(sum(score.total for score in windows))
        return totals

    def generate_until(self, requests: list[Any]) -> list[str]:
        """Greedy answers. Raises CannotMeasureError for tasks that sample."""
        prompts = [self._prompt(*request.args) for request in requests]
        texts: list[str] = []
        for begin in range(0, len(prompts), REQUESTS_AT_ONCE):
            self._progress.advance(begin, len(prompts))
            done = self._target.continue_greedily(prompts[begin : begin + REQUESTS_AT_ONCE])
            texts.extend(one.text for one in done)
        return texts

    def _scored(self, context: str, continuation: str) -> Scored:
        if context:
            return self._cut(split_text(self._target, context, continuation))
        before = self._target.encode(EMPTY_CONTEXT)
        return self._cut(Scored((*before, *self._target.encode(continuation)), len(before)))

    def _cut(self, scored: Scored) -> Scored:
        """Without the beginning of a context that is too long: what the harness does too."""
        surplus = max(len(scored.token_ids) + 1 - self._target.max_len, 0)
        return Scored(scored.token_ids[surplus:], max(scored.start - surplus, 1))

    def _windows(self, text: str) -> list[Scored]:
        token_ids = list(self._target.encode(text))
        [prefix, *_] = self._target.encode(EMPTY_CONTEXT)
        windows = get_rolling_token_windows(token_ids, prefix, self._target.max_len - 2, 1)
        pairs = map(make_disjoint_window, windows)
        return [Scored((*context, *rest), len(context)) for context, rest in pairs]

    def _score(self, scored: Sequence[Scored]) -> list[TokenScores]:
        scores: list[TokenScores] = []
        for begin in range(0, len(scored), REQUESTS_AT_ONCE):
            self._progress.advance(begin, len(scored))
            scores.extend(self._target.score(scored[begin : begin + REQUESTS_AT_ONCE]))
        return scores

    def _prompt(self, context: str, settings: dict[str, Any]) -> Prompt:
        if settings.get("do_sample") or settings.get("temperature"):
            raise CannotMeasureError("the task samples its answers; only greedy ones are compared")
        max_tokens = int(settings.get("max_gen_toks", MAX_ANSWER_TOKENS))
        until = settings.get("until") or []
        stop = (until,) if isinstance(until, str) else tuple(until)
        room = self._target.max_len - max_tokens
        return Prompt(self._target.encode(context)[-room:], max_tokens, stop)


def run_task(
    target: Target, task: str, metric: str, num_items: int, folder: Path | None, progress: Progress
) -> TaskScores:
    """The first `num_items` items of a task, of which `folder` may hold the definition.

    Raises CannotMeasureError for a task or metric that does not exist.
    """
    manager = TaskManager(
        include_path=None if folder is None else str(folder), include_defaults=folder is None
    )
    if task not in manager.all_tasks:
        raise CannotMeasureError(f"lm-evaluation-harness knows no task {task!r}")
    found = simple_evaluate(
        TargetModel(target, progress),
        tasks=[task],
        limit=num_items,
        task_manager=manager,
        bootstrap_iters=0,
    )
    samples = found["samples"][task]
    return _scores(samples, metric, better=found["higher_is_better"][task].get(metric, True))


def _scores(samples: Sequence[dict[str, Any]], metric: str, *, better: bool) -> TaskScores:
    """Of the task's first filter: others read the same answers in another way."""
    read = [sample for sample in samples if sample["filter"] == samples[0]["filter"]]
    missing = next((sample for sample in read if metric not in sample), None)
    if missing is not None:
        known = ", ".join(missing["metrics"])
        raise CannotMeasureError(
            f"the task has no metric {metric!r} of single items; it has {known}"
        )
    sign = 1.0 if better else -1.0
    return TaskScores(
        {str(sample["doc_id"]): sign * float(sample[metric]) for sample in read},
        content_hash([sample["doc_hash"] for sample in read]),
    )
