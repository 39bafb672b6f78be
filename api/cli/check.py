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
@click.option(
    "--tune",
    "tunes",
    is_flag=True,
    help="Measure the Triton kernels' launch configurations on this GPU and keep the fastest.",
)
@click.argument("model", default="embedded")
def check(kernels: str, explains: bool, tunes: bool, model: str) -> None:
    """Run every op of a backend over odd sizes and dtypes, against a slow and obvious oracle.

    Exits with 1 when a case fails. With --explain: which implementation serves which op of MODEL
    (a directory, a GGUF file, or 'embedded'), and why not where none does. With --tune: fill the
    launch table of this GPU's architecture instead, which changes speed and no result.
    """
    if explains and tunes:
        raise click.UsageError("--explain and --tune exclude each other")
    try:
        all_well = _act(kernels, model, explains=explains, tunes=tunes)
    except (ValueError, OSError) as error:
        raise click.ClickException(str(error)) from error
    sys.exit(0 if all_well else 1)


def _act(kernels: str, model: str, *, explains: bool, tunes: bool) -> bool:
    if tunes:
        return _tune()
    return _explain(kernels, model) if explains else _run(kernels)


def _run(kernels: str) -> bool:
    from hasten.kernels.backend import get_backend
    from hasten.kernels.conformance import render_report, run_conformance
    from rich.console import Console

    report = run_conformance(get_backend(kernels))
    Console().print(render_report(report))
    return report.ok


def _explain(kernels: str, model: str) -> bool:
    from hasten.core.binding import ModelBinding
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


def _tune() -> bool:
    from hasten.kernels.triton import has_device

    if not has_device():
        raise ValueError("--tune needs a CUDA device to measure on")
    from hasten.kernels.triton.backend import TritonBackend
    from hasten.kernels.triton.tune import measure_on, tune

    backend = TritonBackend()
    tune(backend.table, measure_on(backend), click.echo).save()
    return True
