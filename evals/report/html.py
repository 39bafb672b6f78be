"""One self-contained HTML page: verdict, measures against limits, plots, the worst tokens.

No script, no font, no request: it can be mailed, kept as an artefact, and opened anywhere.
Exercised by `pytest tests/unit/evals/test_report.py tests/evals/test_html_page.py`.
"""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from hasten.evals.blocks.chat import ChatResult
from hasten.evals.blocks.choice import ChoiceResult
from hasten.evals.blocks.continuation import ContinuationResult
from hasten.evals.blocks.generation import GenerationResult
from hasten.evals.blocks.serving import ServingResult
from hasten.evals.blocks.structured import StructuredResult
from hasten.evals.blocks.text import TextResult
from hasten.evals.configuration import differences
from hasten.evals.gate import Verdict
from hasten.evals.report.diagnosis import diagnose, kl_by_position
from hasten.evals.report.plots import Line, interval, line_chart, pair_bars
from hasten.evals.report.wording import amount, headline, meaning, number, outcome, power_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hasten.evals.blocks.serving import Round
    from hasten.evals.gate import Judgement
    from hasten.evals.record import Record
    from hasten.evals.token_pairs import PairedWindow, WorstToken

NUM_WORST = 24
_STYLE = (Path(__file__).parent / "page.css").read_text(encoding="utf-8")


def html_page(record: Record) -> str:
    """The page as one string."""
    sections = (
        _header(record),
        _measures(record),
        _plots(record),
        _worst(record),
        _answers(record),
        _configuration(record),
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<link rel="icon" href="data:,">'
        f"<title>{escape(record.verdict.value)}: {escape(record.candidate.name)}</title>"
        f"<style>{_STYLE}</style></head><body><main>{''.join(sections)}</main></body></html>\n"
    )


def _header(record: Record) -> str:
    where = "".join(f"<li>{escape(line)}</li>" for line in diagnose(record))
    return (
        f'<header class="{record.verdict.value}"><h1>{escape(headline(record))}</h1>'
        f"<p><b>{escape(record.candidate.name)}</b> against {escape(record.baseline.name)}<br>"
        f"suite {escape(record.suite.name)}, {escape(record.created)}, "
        f"record {escape(record.record_id)}</p>"
        f"{f'<ul>{where}</ul>' if where else ''}</header>"
    )


def _measures(record: Record) -> str:
    judged: list[str] = []
    others: list[str] = []
    for judgement in record.judgements:
        rows = others if judgement.verdict is Verdict.INFORMATION else judged
        rows.append(_measure_row(judgement, record))
    return (
        "<section><h2>Measures</h2><p>Each is a harm: more is worse. The bar spans the confidence "
        f"bounds ({1 - record.suite.alpha:.0%} each way), the dashed mark is the limit.</p>"
        f"{''.join(judged)}<details><summary>{len(others)} more, without a limit</summary>"
        f"{''.join(others)}</details></section>"
    )


def _measure_row(judgement: Judgement, record: Record) -> str:
    bar = ""
    numbers = (judgement.lower, judgement.estimate, judgement.upper, judgement.limit)
    if None not in numbers:
        # A ratio does no harm at 1, everything else at 0.
        harmless = 1.0 if judgement.unit == "ratio" else 0.0
        bar = interval(*((value or 0.0) - harmless for value in numbers))
    notes = [meaning(judgement.name), judgement.note, power_line(judgement, record)]
    shown = "; ".join(note for note in notes if note)
    return (
        f'<div class="measure {judgement.verdict.value}"><div class="name">'
        f"<b>{escape(judgement.name)}</b><small>{escape(shown)}</small></div>"
        f'<div class="value">{escape(amount(judgement.estimate, judgement.unit))}</div>'
        f'<div class="chart">{bar}</div>'
        f'<div class="why"><em>{judgement.verdict.value}</em> {escape(outcome(judgement))}</div>'
        "</div>"
    )


def _plots(record: Record) -> str:
    figures = [*_token_plots(record), *_serving_plots(record)]
    bars = _accuracy_rows(record)
    if bars:
        figures.append(
            '<figure class="plot"><figcaption>Agreement and accuracy</figcaption>'
            f"{pair_bars(bars)}{_SIDES}</figure>"
        )
    if not figures:
        return ""
    return f'<section><h2>Plots</h2><div class="plots">{"".join(figures)}</div></section>'


_SIDES = (
    '<div class="legend"><span><i style="background:var(--baseline)"></i>baseline</span>'
    '<span><i style="background:var(--candidate)"></i>candidate</span></div>'
)


def _token_plots(record: Record) -> list[str]:
    limits = {judgement.name: judgement.limit for judgement in record.judgements}
    figures = []
    for block in record.blocks:
        if isinstance(block.result, TextResult | ChatResult):
            stride, kl = kl_by_position(block.result.windows)
            xs = [stride * (i + 0.5) for i in range(len(kl))]
            line = Line("mean KL", xs, kl, "candidate")
            limit = limits.get(f"{block.name}.kl_mean")
            title = f"KL by position: {block.name}"
            figures.append(line_chart(title, [line], "position (tokens)", "nats", limit))
        if isinstance(block.result, TextResult) and block.result.layers:
            differences_seen = [100.0 * layer.difference for layer in block.result.layers]
            xs = [i / 2 for i in range(len(differences_seen))]
            line = Line(
                "what each adds, relative to the baseline's", xs, differences_seen, "candidate"
            )
            title = f"Difference by layer: {block.name}"
            figures.append(line_chart(title, [line], "layer", "%"))
    return figures


def _serving_plots(record: Record) -> list[str]:
    figures = []
    for block in record.blocks:
        if isinstance(block.result, ServingResult):
            sides = (
                ("baseline", block.result.baseline),
                ("candidate", block.result.candidate),
            )
            figures.append(
                line_chart(
                    f"Time between tokens: {block.name}",
                    [_latency_line(name, rounds) for name, rounds in sides],
                    "concurrent requests",
                    "ms (median)",
                )
            )
    return figures


def _latency_line(name: str, rounds: Sequence[Round]) -> Line:
    levels = sorted({one.concurrency for one in rounds})
    medians = []
    for level in levels:
        gaps = sorted(one.itl_s for one in rounds if one.concurrency == level)
        medians.append(1000 * gaps[len(gaps) // 2])
    return Line(name, levels, medians, name)


def _accuracy_rows(record: Record) -> list[tuple[str, float, float]]:
    rows = []
    for block in record.blocks:
        result = block.result
        if isinstance(result, TextResult | ChatResult):
            changed = [change for window in result.windows for change in window.changes()]
            agreement = 1.0 - sum(changed) / max(len(changed), 1)
            rows.append((f"{block.name}: same top token", 1.0, agreement))
        if isinstance(result, ChoiceResult | ContinuationResult | GenerationResult):
            num = len(result.items)
            base = sum(item.baseline for item in result.items) / num
            cand = sum(item.candidate for item in result.items) / num
            rows.append((f"{block.name}: right answers", base, cand))
        if isinstance(result, StructuredResult):
            base = sum(item.baseline.fits for item in result.items) / len(result.items)
            cand = sum(item.candidate.fits for item in result.items) / len(result.items)
            rows.append((f"{block.name}: JSON of the schema", base, cand))
    return rows


def _worst(record: Record) -> str:
    found: list[tuple[PairedWindow, WorstToken]] = [
        (window, token)
        for block in record.blocks
        if isinstance(block.result, TextResult | ChatResult)
        for window in block.result.windows
        for token in window.worst
    ]
    found.sort(key=lambda pair: -pair[1].kl)
    if not found:
        return ""
    rows = "".join(_worst_row(window, token) for window, token in found[:NUM_WORST])
    return (
        "<section><h2>Worst tokens</h2><p>Where the two sides expect the most different things: "
        "the text so far, the token that stands there, and what each side thought most likely."
        f'</p><div class="worst">{rows}</div></section>'
    )


def _worst_row(window: PairedWindow, token: WorstToken) -> str:
    return (
        '<div class="token"><div class="text">'
        f"{escape(token.context)}<mark>{escape(_visible(token.token))}</mark></div>"
        f'<div class="side base"><small>baseline expected</small>'
        f"<code>{escape(_visible(token.baseline_top))}</code>"
        f"<small>log-prob of the text's token {token.baseline_logprob:.2f}</small></div>"
        f'<div class="side cand"><small>candidate expected</small>'
        f"<code>{escape(_visible(token.candidate_top))}</code>"
        f"<small>log-prob of the text's token {token.candidate_logprob:.2f}</small></div>"
        f'<div class="at"><small>{escape(window.name)}, position {token.position}, '
        f"KL {number(token.kl)}</small></div></div>"
    )


def _visible(token: str) -> str:
    return token.replace("\n", "⏎").replace("\t", "⇥").replace(" ", "·") or "∅"


def _answers(record: Record) -> str:
    """Answers that diverge, side by side, the earliest first."""
    answers = [
        answer
        for block in record.blocks
        if isinstance(block.result, ChatResult)
        for answer in block.result.answers
        if answer.divergence > 0.0
    ]
    if not answers:
        return ""
    answers.sort(key=lambda answer: answer.num_shared)
    rows = "".join(
        f"<details><summary>{escape(answer.name)}: the first {answer.num_shared} tokens agree"
        f'</summary><div class="answers"><div><small>baseline</small>'
        f"<p>{escape(answer.baseline_text)}</p></div><div><small>candidate</small>"
        f"<p>{escape(answer.candidate_text)}</p></div></div></details>"
        for answer in answers
    )
    return f"<section><h2>Answers that differ</h2>{rows}</section>"


def _configuration(record: Record) -> str:
    changed = differences(record.candidate.parts, record.baseline.parts)
    items = "".join(f"<li>{escape(line)}</li>" for line in changed) or "<li>nothing</li>"
    hashes = "".join(
        f"<li>{side}: <code>{escape(one.hash)}</code></li>"
        for side, one in (("candidate", record.candidate), ("baseline", record.baseline))
    )
    data = "".join(
        f"<li>{escape(name)}: <code>{digest[:16]}</code></li>"
        for name, digest in record.data.items()
    )
    return (
        "<section><h2>What was measured</h2><h3>Candidate (here) differs from baseline (there) in"
        f"</h3><ul>{items}</ul><h3>Configuration hashes</h3><ul>{hashes}</ul>"
        f"<h3>Data, SHA-256</h3><ul>{data}</ul></section>"
    )
