"""The directory that `hasten quantize` writes, layer by layer, so that a run can be resumed.

layer-00007.safetensors        one file per layer, written when the layer is finished
layer-00007.json               its entry of the report; gone when the run is done
other.safetensors              embedding, final norm, head
quantize_state.json            what the run was asked to do; gone when it is done
config.json, model.safetensors.index.json, quantize_report.json, quantize_report.svg
"""

from __future__ import annotations

import shutil
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hasten.core.loading.fields import read_json, read_json_object
from hasten.core.loading.quantized_source import StoredArrays
from hasten.core.loading.safetensors_files import INDEX_FILE, open_safetensors_file
from hasten.core.loading.safetensors_writer import write_index, write_json, write_safetensors
from hasten.core.options import ConfigurationError
from hasten.kernels.weights import DenseWeight
from hasten.quant.report import LayerReport, QuantizeReport

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt
    from hasten.quant.calibration import Weights
    from hasten.quant.formats import QuantFormat

STATE_FILE = "quantize_state.json"
REPORT_FILE = "quantize_report.json"
PLOT_FILE = "quantize_report.svg"
OTHER_FILE = "other.safetensors"
COPIED_FILES = (
    "generation_config.json", "tokenizer.json", "tokenizer_config.json", "tokenizer.model",
    "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt",
    "chat_template.jinja", "chat_template.json",
)  # fmt: skip


class QuantizeFolder:
    """One run's directory. `key` tells runs apart that would write different things.

    Raises ConfigurationError when the directory holds a finished model or another run.
    """

    def __init__(self, path: Path, key: str) -> None:
        self.path = path
        if (path / INDEX_FILE).exists():
            raise ConfigurationError(f"{path}: holds a finished model already")
        path.mkdir(parents=True, exist_ok=True)
        state = path / STATE_FILE
        if state.exists() and read_json_object(state).get("key") != key:
            raise ConfigurationError(
                f"{path}: holds an unfinished run with other options; remove it first"
            )
        write_json(state, {"key": key})

    def num_finished(self, num_layers: int) -> int:
        """How many layers, from the first on, are written."""
        return next(
            (idx for idx in range(num_layers) if not self._report_path(idx).exists()), num_layers
        )

    def layer_report(self, layer_idx: int) -> LayerReport:
        fields = read_json(self._report_path(layer_idx))
        return LayerReport(
            fields.integer("layer_idx", minimum=0),
            fields.number("relative_error", above=-1.0),
            fields.number("seconds", above=-1.0),
            fields.number("largest_k", above=-1.0),
            fields.number("largest_v", above=-1.0),
        )

    def write_layer(self, report: LayerReport, tensors: Mapping[str, npt.NDArray[Any]]) -> None:
        """The report comes last: it says that the layer is complete."""
        write_safetensors(self.path / _layer_file(report.layer_idx), tensors)
        write_json(self._report_path(report.layer_idx), asdict(report))

    def read_layer(self, layer_idx: int, stored_as: QuantFormat) -> Weights:
        """The weights of a finished layer, as anybody would read them."""
        arrays = StoredArrays(open_safetensors_file(self.path / _layer_file(layer_idx)))
        linears = stored_as.linears(arrays)
        owned = {name for names in linears.values() for name in names}
        weights: Weights = {name: DenseWeight(arrays[name]) for name in arrays if name not in owned}
        for linear in linears:
            weights[f"{linear}.weight"] = stored_as.read(arrays, linear)
        return weights

    def finish(
        self,
        config: Mapping[str, Any],
        other: Mapping[str, npt.NDArray[Any]],
        report: QuantizeReport,
    ) -> None:
        """Everything that is not a layer; then the files that only an unfinished run has go."""
        write_safetensors(self.path / OTHER_FILE, other)
        files = [*(_layer_file(layer.layer_idx) for layer in report.layers), OTHER_FILE]
        write_json(self.path / "config.json", config)
        write_report(self.path, report)
        write_index(
            self.path,
            {name: StoredArrays(open_safetensors_file(self.path / name)) for name in files},
        )
        for layer in report.layers:
            self._report_path(layer.layer_idx).unlink()
        (self.path / STATE_FILE).unlink()

    def layer_bytes(self, layer_idx: int) -> int:
        """Bytes of a finished layer's tensors."""
        arrays = StoredArrays(open_safetensors_file(self.path / _layer_file(layer_idx)))
        return sum(array.nbytes for array in arrays.values())

    def _report_path(self, layer_idx: int) -> Path:
        return self.path / f"layer-{layer_idx:05}.json"


def copy_companions(source: Path, out: Path) -> None:
    """Tokeniser, chat template and generation defaults of the directory that `out` is made from."""
    for name in COPIED_FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, out / name)


def write_report(out: Path, report: QuantizeReport) -> None:
    """As JSON and as a plot."""
    write_json(out / REPORT_FILE, report.as_json())
    (out / PLOT_FILE).write_text(report.plot(), encoding="utf-8")


def _layer_file(layer_idx: int) -> str:
    return f"layer-{layer_idx:05}.safetensors"
