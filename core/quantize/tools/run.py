"""Running a tool: a job goes in, a directory that this server reads comes out.

    1. the driver of the tool, in the tool's environment, makes OUT.partial from the job
    2. the directory is loaded as `hasten serve` would load it
    3. its layers are run beside the exact ones: the same report as for our own schemes

Exercised by `pytest tests/cpu/quant/test_quantize_tools.py`, with the tools by `make interop`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from hasten.core.loading import load_model
from hasten.core.loading.fields import read_json_object
from hasten.core.options import ConfigurationError
from hasten.core.quantize.compare import can_run_layers, compare_layers
from hasten.core.quantize.folder import write_report
from hasten.core.quantize.plan import choose_group_size
from hasten.core.quantize.tools.environment import last_lines

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
    the tool's last words, LoadError for what cannot be read.
    """
    if out.exists():
        raise ConfigurationError(f"{out}: exists already")
    if "quantization_config" in read_json_object(source / "config.json"):
        raise ConfigurationError(f"{source}: is quantised; only --backend native takes such models")
    exact = load_model(str(source))
    partial, log = out.with_name(f"{out.name}.partial"), out.with_name(f"{out.name}.log")
    shutil.rmtree(partial, ignore_errors=True)
    out.parent.mkdir(parents=True, exist_ok=True)
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
    partial.rename(out)
    log.unlink()
    return report


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
    tool = environment.tool
    read_fd, write_fd = os.pipe()
    command = (str(environment.python), str(DRIVERS / tool.driver), str(job), str(write_fd))
    with (
        os.fdopen(read_fd, encoding="utf-8") as progress,
        log.open("w", encoding="utf-8") as output,
        subprocess.Popen(  # noqa: S603  one of our own programs
            command,
            stdout=output,
            stderr=output,
            pass_fds=(write_fd,),
            env=_variables(environment),
        ) as process,
    ):
        os.close(write_fd)
        try:
            for line in progress:
                on_layers(int(json.loads(line)["layers"]))
        except BaseException:
            process.terminate()
            raise
    if process.returncode != 0:
        raise ConfigurationError(
            f"{tool.package} ended with code {process.returncode}; {log} says:\n{last_lines(log)}"
        )


def _variables(environment: ToolEnvironment) -> dict[str, str]:
    """Our process's, without what would bring our packages into the tool's environment."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    # Models and texts are files here: nothing is asked of a hub.
    return {**ours, "HF_HUB_OFFLINE": "1", **dict(environment.tool.variables)}
