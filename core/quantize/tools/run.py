"""Running a tool: a job goes in, a directory that this server reads comes out.

    1. the driver of the tool, in the tool's environment, makes a directory from the job
    2. the directory is loaded as `hasten serve` would load it
    3. its layers are run beside the exact ones: the same report as for our own schemes
    4. it gets the tokeniser, and becomes OUT

Until then it lies in a hidden folder of its own beside OUT: nothing that was there is touched.

Exercised by `pytest tests/cpu/quant/test_quantize_tools.py`, with the tools by `make interop`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from time import perf_counter
from typing import IO, TYPE_CHECKING, Any

from hasten.core.loading import LoadError, load_model
from hasten.core.loading.fields import read_json_object
from hasten.core.options import ConfigurationError
from hasten.core.quantize.compare import can_run_layers, compare_layers
from hasten.core.quantize.folder import copy_companions, write_report
from hasten.core.quantize.plan import choose_group_size
from hasten.core.quantize.tools.environment import clean_variables, last_lines

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from hasten.core.models import DecoderConfig
    from hasten.core.quantize.options import QuantizeOptions
    from hasten.core.quantize.tools.environment import ToolEnvironment
    from hasten.quant.report import QuantizeReport

DRIVERS = Path(__file__).parent / "drivers"
OnLayers = Callable[[int], None]
"""Called with the number of layers that are finished."""


def quantize_with_tool(
    source: Path,
    out: Path,
    options: QuantizeOptions,
    token_ids: npt.NDArray[np.int32],
    environment: ToolEnvironment,
    on_layers: OnLayers = lambda _: None,
) -> QuantizeReport | None:
    """Have a tool quantise the Hugging Face directory `source` into `out`, which must not exist.

    There is no report for families whose layers we cannot run alone. The tool's log stays beside
    `out` when it fails. Raises ConfigurationError for options that contradict the model and with
    the tool's last words, LoadError where `source` cannot be read.
    """
    if out.exists():
        raise ConfigurationError(f"{out}: exists already")
    if "quantization_config" in read_json_object(source / "config.json"):
        raise ConfigurationError(f"{source}: is quantised; only --backend native takes such models")
    exact = load_model(str(source))
    with _workplace(out) as (partial, log):
        begin_s = perf_counter()
        with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as file:
            json.dump(job_of(source, partial, options, exact.config, token_ids), file)
            file.flush()
            _run_driver(environment, Path(file.name), log, on_layers)
        seconds, made = perf_counter() - begin_s, load_model(str(partial))
        report = None
        if can_run_layers(exact):
            report = compare_layers(exact, made, options.scheme, token_ids, seconds)
            write_report(partial, report)
        copy_companions(source, partial)
        partial.rename(out)
    return report


@contextmanager
def _workplace(out: Path) -> Iterator[tuple[Path, Path]]:
    """Where the directory and the log are made; what is left there in the end goes.

    On failure the log, if there is one, is kept, and the ConfigurationError says where.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=out.parent, prefix=f".{out.name}."))
    log = folder / "log"
    try:
        yield folder / "checkpoint", log
    except (ConfigurationError, LoadError, OSError) as error:
        if not log.exists():
            raise
        kept = log.rename(_free_log(out))
        raise ConfigurationError(f"{error}\nthe tool's log: {kept}") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _free_log(out: Path) -> Path:
    """The first of OUT.log, OUT.2.log, ... that nobody has."""
    path = out.with_name(f"{out.name}.log")
    numbers = count(2)
    while os.path.lexists(path):
        path = out.with_name(f"{out.name}.{next(numbers)}.log")
    return path


def job_of(
    source: Path,
    out: Path,
    options: QuantizeOptions,
    config: DecoderConfig,
    token_ids: npt.NDArray[np.int32],
) -> dict[str, Any]:
    """What a driver is told (`drivers/protocol.py`). Raises ConfigurationError."""
    group_size = None
    if options.scheme != "fp8":
        group_size = choose_group_size(options.group_size, config)
    return {
        "model": str(source),
        "out": str(out),
        "scheme": options.scheme,
        "group_size": group_size,
        "activations": options.activations,
        "kv_cache": options.kv_cache,
        "token_ids": token_ids.tolist(),
    }


def _run_driver(environment: ToolEnvironment, job: Path, log: Path, on_layers: OnLayers) -> None:
    """Raises ConfigurationError when the driver fails."""
    with log.open("w", encoding="utf-8") as output:
        read_fd, write_fd = os.pipe()
        with os.fdopen(read_fd, encoding="utf-8") as progress:
            try:
                process = _start_driver(environment, job, write_fd, output)
            finally:
                os.close(write_fd)
            with process:
                try:
                    for line in progress:
                        on_layers(int(json.loads(line)["layers"]))
                except BaseException:
                    process.terminate()
                    raise
    if process.returncode != 0:
        package = environment.tool.package
        raise ConfigurationError(
            f"{package} ended with code {process.returncode}:\n{last_lines(log)}"
        )


def _start_driver(
    environment: ToolEnvironment, job: Path, write_fd: int, output: IO[str]
) -> subprocess.Popen[bytes]:
    tool = environment.tool
    # Models and texts are files here: nothing is asked of a hub.
    variables = {**clean_variables(), "HF_HUB_OFFLINE": "1", **dict(tool.variables)}
    return subprocess.Popen(  # noqa: S603  one of our own programs
        (str(environment.python), str(DRIVERS / tool.driver), str(job), str(write_fd)),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        pass_fds=(write_fd,),
        env=variables,
    )
