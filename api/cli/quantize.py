"""`hasten quantize`: make a quantised checkpoint."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from hasten.api.cli.flags import FlagCommand, build_options
from hasten.core.options import ConfigurationError
from hasten.core.quantize.options import QuantizeOptions

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from hasten.api.text.tokenizer import Tokenizer
    from hasten.quant.report import QuantizeReport

    TokenIds = npt.NDArray[np.int32]


@click.command(cls=FlagCommand, option_classes=(QuantizeOptions,))
@click.argument("model")
@click.argument("out", type=click.Path(path_type=Path, file_okay=False))
def quantize(model: str, out: Path, **values: Any) -> None:
    """Quantise MODEL (a directory, a GGUF file, or 'embedded') into the directory OUT.

    int4-awq writes AutoAWQ's format, int4-gptq GPTQ's, the others that of compressed-tensors. A
    run that was interrupted is resumed by the same command. With another --backend its tool does
    the work, in an environment of its own, and writes its own format.
    """
    options = build_options(QuantizeOptions, values)
    from hasten.core.loading import LoadError
    from rich.console import Console

    console = Console()
    try:
        report = _run(_Task(model, out, options, console.print))
    except (ConfigurationError, LoadError, OSError) as error:
        raise click.ClickException(str(error)) from error
    for line in report.lines() if report is not None else ():
        console.print(line)
    console.print(f"written to {out}; serve it with: hasten serve --model {out}")


@dataclass(frozen=True, slots=True)
class _Task:
    model: str
    out: Path
    options: QuantizeOptions
    say: Callable[[str], None]


def _run(task: _Task) -> QuantizeReport | None:
    from hasten.api.text.tokenizer import load_tokenizer
    from hasten.core.loading import read_model_info

    tokenizer = load_tokenizer(task.model)
    num_layers = read_model_info(task.model).config.num_layers
    with _progress(1, "calibration text") as advance_to:
        token_ids = _calibration_tokens(task, tokenizer)
        advance_to(1)
    if task.options.backend != "native":
        return _run_tool(task, tokenizer, token_ids, num_layers)
    return _run_native(task, tokenizer, token_ids, num_layers)


def _run_native(
    task: _Task, tokenizer: Tokenizer, token_ids: TokenIds, num_layers: int
) -> QuantizeReport:
    from hasten.api.text.tokenizer_files import write_tokenizer
    from hasten.core.loading import locate_model
    from hasten.core.quantize import quantize_model

    with _progress(num_layers, "layers") as advance_to:
        report = quantize_model(
            task.model,
            task.out,
            task.options,
            token_ids,
            lambda layer: advance_to(layer.layer_idx + 1),
        )
    if locate_model(task.model).is_gguf:
        write_tokenizer(tokenizer, task.out)
    return report


def _run_tool(
    task: _Task, tokenizer: Tokenizer, token_ids: TokenIds, num_layers: int
) -> QuantizeReport | None:
    from hasten.core.quantize.tools import TOOLS, ToolEnvironment, quantize_with_tool

    tool, options = TOOLS[task.options.backend], task.options
    given = None if options.environment is None else Path(options.environment).expanduser()
    environment = ToolEnvironment.locate(tool, given)
    environment.ensure(task.say)
    with (
        _plain_directory(task.model, tokenizer) as source,
        _progress(num_layers, f"layers, by {tool.package}") as advance_to,
    ):
        report = quantize_with_tool(source, task.out, options, token_ids, environment, advance_to)
        advance_to(num_layers)
    return report


@contextmanager
def _plain_directory(model: str, tokenizer: Tokenizer) -> Iterator[Path]:
    """The model as a Hugging Face directory, for as long as it is needed where it is none."""
    from hasten.api.text.tokenizer_files import write_tokenizer
    from hasten.core.loading import load_model, locate_model
    from hasten.core.loading.hf_export import export_model

    location = locate_model(model)
    if not location.is_gguf:
        yield location.path.resolve()
        return
    with tempfile.TemporaryDirectory(prefix="hasten-") as name:
        folder = Path(name)
        export_model(load_model(model), folder)
        write_tokenizer(tokenizer, folder)
        yield folder


@contextmanager
def _progress(total: int, name: str) -> Iterator[Callable[[int], None]]:
    """A bar; what is yielded takes how much is done."""
    from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

    columns = (*Progress.get_default_columns()[:2], MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns) as bar:
        task_id = bar.add_task(name, total=total)
        yield lambda completed: bar.update(task_id, completed=completed)


def _calibration_tokens(task: _Task, tokenizer: Tokenizer) -> TokenIds:
    from hasten.core.quantize import cut_sequences, write_own_text

    options = task.options
    if options.calibration is None:
        start = tokenizer.bos_token_id
        return write_own_text(task.model, options, 0 if start is None else start)
    path = Path(options.calibration)
    text = path.read_text(encoding="utf-8") if path.is_file() else _data_set(options.calibration)
    return cut_sequences(tokenizer.encode(text), options)


def _data_set(name: str) -> str:
    """The `text` column of a data set's training split."""
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise ConfigurationError(
            f"--calibration {name}: no such file, and the package `datasets`, which would look "
            "for a data set of this name, is not installed"
        ) from error
    rows = load_dataset(name, split="train")
    if "text" not in rows.column_names:
        raise ConfigurationError(f"--calibration {name}: the data set has no column 'text'")
    return "\n\n".join(rows["text"])
