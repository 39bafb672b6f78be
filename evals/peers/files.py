"""The embedded model in the form each engine reads.

llama.cpp reads the GGUF file as it is. The others get a Hugging Face directory with the same
dequantised weights in bf16, and OpenVINO what its own exporter makes of that.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from hasten.api.text.tokenizer import load_tokenizer
from hasten.core.loading import load_model
from hasten.core.loading.hf_export import export_config
from hasten.core.loading.locate import EMBEDDED, locate_model
from hasten.core.loading.safetensors_writer import write_json, write_safetensors
from hasten.core.models import weight_specs
from ml_dtypes import bfloat16

if TYPE_CHECKING:
    import numpy.typing as npt

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content']"
    " + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def gguf_file() -> Path:
    return locate_model(EMBEDDED).path


def bf16_directory(folder: Path) -> Path:
    """Written once; the directory is there when it is whole."""
    target = folder / "model-bf16"
    if not target.exists():
        part = folder / "model-bf16.part"
        part.mkdir(parents=True, exist_ok=True)
        _export(part)
        part.rename(target)
    return target


def _export(folder: Path) -> None:
    model = load_model(EMBEDDED)
    write_json(folder / "config.json", export_config(model.config, model.info.eos_token_ids))
    tensors: dict[str, npt.NDArray[Any]] = {}
    for spec in weight_specs(model.config):
        values = model.weights[spec.name].dequantize().astype(bfloat16)
        ends = np.cumsum([part.shape[0] for part in spec.parts]).tolist()
        for part, end in zip(spec.parts, ends, strict=True):
            tensors[part.key] = np.ascontiguousarray(values[end - part.shape[0] : end])
    write_safetensors(folder / "model.safetensors", tensors)
    tokenizer = load_tokenizer(EMBEDDED)
    (folder / "tokenizer.json").write_text(tokenizer.to_json(), encoding="utf-8")
    names = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"}
    write_json(folder / "tokenizer_config.json", {**names, "chat_template": CHATML})


def openvino_directory(folder: Path, exporter: Path) -> Path:
    """`exporter`: the interpreter of an environment with optimum-intel."""
    target = folder / "model-openvino"
    if not target.exists():
        part = folder / "model-openvino.part"
        command = (
            *(str(exporter.with_name("optimum-cli")), "export", "openvino"),
            *("--model", str(bf16_directory(folder)), "--task", "text-generation-with-past"),
            *("--weight-format", "int4", "--group-size", "64", "--ratio", "1.0", str(part)),
        )
        subprocess.run(command, check=True)  # noqa: S603
        part.rename(target)
    return target
