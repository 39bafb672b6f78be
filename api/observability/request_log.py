"""A line for each request, when it has ended; the texts of prompts only where asked for.

Exercised by `pytest tests/unit/api/test_observability.py`.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from hasten.api.text.detokenizer import text_of

if TYPE_CHECKING:
    from hasten.api.security.caller import Caller
    from hasten.api.text.detokenizer import TokenBytes

logger = logging.getLogger("hasten.requests")


class RequestLog:
    """Writes the records of one server."""

    def __init__(self, *, with_prompts: bool) -> None:
        self._with_prompts = with_prompts

    def write(self, who: Caller, vocabulary: TokenBytes) -> None:
        """`who` has got an answer, or an error, or has gone."""
        record: dict[str, object] = {
            "key": who.key.name,
            "prompt_tokens": who.num_prompt_tokens,
            "output_tokens": who.num_output_tokens,
            "ttft_ms": None if who.ttft_s is None else round(who.ttft_s * 1000, 1),
            "total_ms": round((time.monotonic() - who.begin_s) * 1000, 1),
            "finish_reason": who.finish_reason,
        }
        if self._with_prompts:
            record["prompts"] = [text_of(vocabulary, prompt) for prompt in who.prompts]
        text = " ".join(f"{name}={value!r}" for name, value in record.items() if value is not None)
        logger.info("request %s", text, extra={"fields": record})
