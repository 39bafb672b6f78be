"""A tokeniser as the files of a model directory: what a GGUF file has inside, beside the weights.

Exercised by `pytest tests/unit/text/test_tokenizer_files.py`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from hasten.api.text.tokenizer import Tokenizer


def write_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write `tokenizer.json` and `tokenizer_config.json`, chat template included."""
    (folder / "tokenizer.json").write_text(tokenizer.to_json(), encoding="utf-8")
    info = tokenizer.info
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": info.bos_token,
        "eos_token": info.eos_token,
        "pad_token": info.pad_token,
        "chat_template": info.chat_template,
    }
    stated = {name: value for name, value in config.items() if value is not None}
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(stated, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
