"""Start a server on a free port, ask one question, print the answer and how fast it came.

`python -m hasten.api.demo`, or `make demo`.
"""

from __future__ import annotations

import logging
import sys

from hasten.api.cli.chat_client import ChatClient
from hasten.api.cli.local_server import local_server
from hasten.core.options import EngineOptions

QUESTION = "In two sentences: why is the sky blue?"
PARAMETERS = {"max_tokens": 128, "temperature": 0.0}


def ask(client: ChatClient) -> str:
    """Print the answer as it comes; returns the line of figures."""
    for piece in client.stream([{"role": "user", "content": QUESTION}], PARAMETERS):
        sys.stdout.write(piece)
        sys.stdout.flush()
    statistics = client.statistics
    assert statistics is not None
    return (
        f"TTFT {statistics.ttft_s * 1000:.0f} ms, {statistics.tokens_per_s:.0f} tok/s "
        f"({statistics.completion_tokens} tokens)"
    )


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    with local_server(EngineOptions()) as client:
        sys.stdout.write(f"\n> {QUESTION}\n\n")
        figures = ask(client)
    sys.stdout.write(f"\n\n{figures}\n")


if __name__ == "__main__":
    main()
