"""One request, one text: the candidate answers prompts alone, together, and together again.

What a request answers may not depend on the batch that it ran in or on what the cache held.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from hasten.evals.blocks.limits import check_limits
from hasten.evals.gate import Measure
from hasten.evals.harm import NoneAllowed
from hasten.evals.rows import PromptRow
from hasten.evals.target import Prompt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hasten.evals.pair import Pair
    from hasten.evals.target import Continuation


class Repeats(msgspec.Struct, frozen=True):
    """One prompt's answers under each condition."""

    name: str
    token_ids: dict[str, list[int]]

    def differing(self) -> list[str]:
        """The conditions whose answer differs from the one computed alone."""
        alone = self.token_ids["alone"]
        return [name for name, token_ids in self.token_ids.items() if token_ids != alone]


class InvarianceResult(msgspec.Struct, frozen=True, tag="invariance"):
    prompts: list[Repeats]


class InvarianceBlock(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag_field="kind",
    tag="invariance",
    forbid_unknown_fields=True,
):
    """The first `num_prompts` prompts, `max_tokens` each; any difference breaks the promise."""

    name: str
    source: str = "hasten:prompts.jsonl"
    num_prompts: int
    max_tokens: int
    limits: dict[str, float] = {}

    def __post_init__(self) -> None:
        check_limits(self.name, self.limits, ("text_changes",))

    def observe(self, pair: Pair) -> InvarianceResult:
        rows = pair.data.rows(self.source, PromptRow, self.num_prompts)
        target = pair.candidate
        prompts = [Prompt(target.render(row.messages), self.max_tokens) for row in rows]
        alone: list[Continuation] = []
        for done, prompt in enumerate(prompts):
            pair.progress.advance(done, len(prompts) + 2)
            alone.extend(target.continue_greedily([prompt], fresh_cache=True))
        conditions = {
            "alone": alone,
            "together, cold cache": target.continue_greedily(prompts, fresh_cache=True),
            "together, warm cache": target.continue_greedily(prompts),
        }
        return InvarianceResult(_by_prompt(rows, conditions))

    def measures(self, result: InvarianceResult) -> list[Measure]:
        changed = [repeats for repeats in result.prompts if repeats.differing()]
        num = sum(len(repeats.token_ids) - 1 for repeats in result.prompts)
        num_changed = sum(len(repeats.differing()) for repeats in result.prompts)
        note = ", ".join(f"{r.name} ({'; '.join(r.differing())})" for r in changed[:5])
        name = "text_changes"
        harm = NoneAllowed(num_changed, num)
        return [Measure(f"{self.name}.{name}", "texts", harm, self.limits.get(name), note)]


def _by_prompt(
    rows: Sequence[PromptRow], conditions: dict[str, list[Continuation]]
) -> list[Repeats]:
    return [
        Repeats(row.id, {name: list(c[i].token_ids) for name, c in conditions.items()})
        for i, row in enumerate(rows)
    ]
