"""How numbers and verdicts are put, the same in every format."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from hasten.evals.gate import Verdict

if TYPE_CHECKING:
    from hasten.evals.gate import Judgement
    from hasten.evals.record import Record

WHAT_IT_MEANS = {
    "kl_mean": "mean KL divergence from the baseline, per token",
    "kl_late": "the same in the later half of each text, where lost context shows",
    "kl_p99": "KL of the worst hundredth of all tokens",
    "kl_max": "KL of the single worst token",
    "top1_change": "how often the most likely next token is another one",
    "perplexity_ratio": "perplexity over the baseline's",
    "divergence": "how much of the greedy answers comes after they first differ",
    "decode_errors": "tokens chosen while decoding that reading the same text would not choose",
    "text_changes": "answers that depend on the batch or the cache",
    "accuracy_loss": "fall in the share of right answers, item by item",
    "acceptance_loss": "fall in the share of drafts that are accepted",
    "weights_ratio": "memory of the weights over the baseline's",
    "kv_ratio": "memory of the KV cache per token, over the baseline's",
    "schema_loss": "fall in the share of answers that fit their JSON schema",
    "score_loss": "fall in the task's own metric, item by item",
    "likelihood_loss": "how much less likely the right answers became, per item",
    "ttft_ratio": "time to first token over the baseline's",
    "itl_ratio": "time between tokens over the baseline's",
    "itl_p99_ratio": "the 99th percentile of it, over the baseline's",
    "time_per_token_ratio": "total time per token over the baseline's",
}

TOO_MANY = 100
"""So many times the samples that there were are no advice to take more."""


def meaning(name: str) -> str:
    """What a measure is, in words; empty if it needs none."""
    return WHAT_IT_MEANS.get(name.rpartition(".")[2].partition("@")[0], "")


def number(value: float | None) -> str:
    """Three significant digits, never in exponent form."""
    if value is None:
        return "-"
    if abs(value) < 5e-7 or not math.isfinite(value):
        return "0" if math.isfinite(value) else f"{value:g}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:.{min(digits, 6)}f}"


def amount(value: float | None, unit: str) -> str:
    """A number with its unit; shares as percentages."""
    if value is not None and unit == "share":
        return f"{number(100 * value)} %"
    if value is not None and unit == "ratio":
        return f"{value:.3f}"
    return number(value) if not unit or value is None else f"{number(value)} {unit}"


def outcome(judgement: Judgement) -> str:
    """One sentence on why the verdict is what it is."""
    unit = judgement.unit
    if judgement.verdict is Verdict.MISSING:
        return f"not measured: {judgement.note}"
    limit, upper = amount(judgement.limit, unit), amount(judgement.upper, unit)
    if judgement.verdict is Verdict.PASS:
        return f"at most {upper}, within the limit of {limit}"
    if judgement.verdict is Verdict.FAIL:
        return f"beyond the limit of {limit} (adjusted p = {judgement.p_fail:.2g})"
    if judgement.verdict is Verdict.UNDECIDED:
        return f"may be as much as {upper}, the limit is {limit}; {_more(judgement)}"
    return f"at most {upper}" if judgement.upper is not None else ""


def _more(judgement: Judgement) -> str:
    if judgement.more_samples is None:
        return "the estimate lies on the limit"
    if judgement.more_samples > TOO_MANY * judgement.num_samples:
        return "the estimate lies so close to the limit that more samples would hardly decide"
    return f"about {judgement.more_samples} more {judgement.sample} would decide"


def detectable(judgement: Judgement) -> str:
    """The least harm that so many samples show; empty where there is no limit."""
    if judgement.detectable is None:
        return ""
    # Promises that allow no exception are counted; what can be seen is a share of all tries.
    unit = "share" if judgement.sample == "comparisons" else judgement.unit
    return amount(judgement.detectable, unit)


def power_line(judgement: Judgement, record: Record) -> str:
    """What so many samples can see: "sees 1.9 % with 90 % power"."""
    seen = detectable(judgement)
    return f"sees {seen} with {record.suite.power:.0%} power" if seen else ""


def headline(record: Record) -> str:
    """The verdict on the whole, in words."""
    judged = [j for j in record.judgements if j.verdict is not Verdict.INFORMATION]
    counts = {v: sum(j.verdict is v for j in judged) for v in Verdict}
    if record.verdict is Verdict.PASS:
        return f"pass: all {len(judged)} measures are within their limits"
    parts = [
        f"{counts[verdict]} {word}"
        for verdict, word in (
            (Verdict.FAIL, "failed"),
            (Verdict.UNDECIDED, "undecided"),
            (Verdict.MISSING, "not measured"),
        )
        if counts[verdict]
    ]
    return f"{record.verdict.value}: {', '.join(parts)} of {len(judged)} measures"
