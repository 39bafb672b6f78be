"""`hasten quantize`: make a quantised checkpoint."""

from __future__ import annotations

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


@click.command(cls=FlagCommand, option_classes=(QuantizeOptions,))
@click.argument("model")
@click.argument("out", type=click.Path(path_type=Path, file_okay=False))
def quantize(model: str, out: Path, **values: Any) -> None:
    """Quantise MODEL (a directory, a GGUF file, or 'embedded') into the directory OUT.

    int4-awq writes AutoAWQ's format, int4-gptq GPTQ's, the others that of compressed-tensors. A
    run that was interrupted is resumed by the same command.
    """
    options = build_options(QuantizeOptions, values)
    from hasten.core.loading import LoadError
    from rich.console import Console

    try:
        report = _run(model, out, options)
    except (ConfigurationError, LoadError, OSError) as error:
        raise click.ClickException(str(error)) from error
    console = Console()
    for line in report.lines():
        console.print(line)
    console.print(f"written to {out}; serve it with: hasten serve --model {out}")


def _run(model: str, out: Path, options: QuantizeOptions) -> QuantizeReport:
    from hasten.api.text.tokenizer import load_tokenizer
    from hasten.api.text.tokenizer_files import write_tokenizer
    from hasten.core.loading import read_model_info
    from hasten.core.quantize import quantize_model
    from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

    tokenizer = load_tokenizer(model)
    info = read_model_info(model)
    columns = (*Progress.get_default_columns()[:2], MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns) as bar:
        task = bar.add_task("calibration text", total=1)
        token_ids = _calibration_tokens(model, options, tokenizer)
        bar.update(task, completed=1)
        task = bar.add_task("layers", total=info.config.num_layers)
        report = quantize_model(model, out, options, token_ids, lambda _: bar.advance(task))
    if not info.path.is_dir():
        write_tokenizer(tokenizer, out)
    return report


def _calibration_tokens(
    model: str, options: QuantizeOptions, tokenizer: Tokenizer
) -> npt.NDArray[np.int32]:
    from hasten.core.quantize import cut_sequences, write_own_text

    if options.calibration is None:
        start = tokenizer.bos_token_id
        return write_own_text(model, options, 0 if start is None else start)
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
