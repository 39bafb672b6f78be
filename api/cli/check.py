"""`hasten check`: do the kernels of this machine compute what they should?"""

from __future__ import annotations

import sys

import click
from hasten.kernels.backend import BACKENDS


@click.command()
@click.option(
    "--kernels",
    type=click.Choice(("auto", *BACKENDS)),
    default="auto",
    show_default=True,
    help="The backend to check.",
)
@click.option(
    "--explain", "explains", is_flag=True, help="Show what serves each op of MODEL instead."
)
@click.argument("model", default="embedded")
def check(kernels: str, explains: bool, model: str) -> None:
    """Run every op of a backend over odd sizes and dtypes, against a slow and obvious oracle.

    Exits with 1 when a case fails. With --explain: which implementation serves which op of MODEL
    (a directory, a GGUF file, or 'embedded'), and why not where none does.
    """
    try:
        all_well = _explain(kernels, model) if explains else _run(kernels)
    except (ValueError, OSError) as error:
        raise click.ClickException(str(error)) from error
    sys.exit(0 if all_well else 1)


def _run(kernels: str) -> bool:
    from hasten.kernels.backend import get_backend
    from hasten.kernels.conformance import render_report, run_conformance
    from rich.console import Console

    report = run_conformance(get_backend(kernels))
    Console().print(render_report(report))
    return report.ok


def _explain(kernels: str, model: str) -> bool:
    from hasten.core.build import ModelBinding
    from hasten.core.loading import load_model
    from hasten.core.options import EngineOptions, ExecutionOptions, ModelOptions
    from hasten.kernels.backend import get_backend
    from hasten.kernels.conformance import explain, render_choices
    from rich.console import Console

    options = EngineOptions(
        model=ModelOptions(model=model), execution=ExecutionOptions(kernels=kernels)
    )
    backend = get_backend(kernels)
    binding = ModelBinding.resolve(load_model(model), backend, options)
    choices = explain(backend, binding.program, binding.model.weights)
    Console().print(render_choices(backend, choices))
    return all(choice.reason is None for choice in choices)
