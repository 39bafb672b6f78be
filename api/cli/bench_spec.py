"""`hasten bench spec`: what speculation gains and costs here, load by load."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource
from hasten.api.cli.figures import json_option, write_json
from hasten.api.cli.flags import FlagCommand, build_options
from hasten.api.spec_bench import SpecBenchOptions
from hasten.core.options import EngineOptions

if TYPE_CHECKING:
    from hasten.api.spec_bench import SpecRow


@click.command(cls=FlagCommand, option_classes=(SpecBenchOptions, EngineOptions))
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write table (speculation.md) and plot (speculation.svg) there.",
)
@json_option
@click.pass_context
def spec(ctx: click.Context, /, out: Path | None, json_path: Path | None, **values: Any) -> None:
    """Decode the same prompts with and without speculation, in this process.

    Ratios are to no speculation, between runs on the same prompts, and in a second table to the
    fastest of none and the fixed depths. --methods says what is compared;
    --spec-draft-model and --spec-eagle-head are given as to `hasten serve`.
    """
    options = build_options(SpecBenchOptions, values)
    for name in ("spec_method", "spec_depth"):
        if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            flag = f"--{name.replace('_', '-')}"
            raise click.UsageError(f"{flag}: what is compared is said by --methods and --full", ctx)
    values |= {"spec_method": "auto"}  # so that any drafter may be named
    engine_options = build_options(EngineOptions, values)
    from hasten.api.spec_bench import comparisons, run_spec_bench
    from hasten.api.spec_bench_report import comparison_table, markdown_table, plot
    from rich.console import Console

    console = Console(stderr=True)
    try:
        with console.status("loading") as status:
            rows = []
            for row in run_spec_bench(engine_options, options, status.update):
                rows.append(row)
                console.print(_line(row))
        write_json(json_path, rows)
        tables = f"{markdown_table(rows)}\n{comparison_table(comparisons(rows))}"
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
            (out / "speculation.md").write_text(tables)
            (out / "speculation.svg").write_text(plot(rows))
    except (ValueError, OSError) as error:
        raise click.ClickException(str(error)) from error
    click.echo(tables, nl=False)


def _line(row: SpecRow) -> str:
    """Said as soon as it is known: a whole comparison takes half an hour."""
    what = f"{row.prompts}, {row.load} at once, {row.configuration}"
    return f"{what}: {row.tokens_per_s:,.0f} tokens/s, {row.ratio:.2f} of none"
