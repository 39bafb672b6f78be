"""`make fuzz-api`: Schemathesis sends what the OpenAPI document allows and forbids.

The server has no model, so that thousands of requests take seconds. No answer may have a status, a
type or a shape that the document does not list; a 500 is not listed anywhere.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from tests.helpers.server_process import FAKE, server_process

CHECKS = (
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
)


def main(schemathesis: str, *options: str) -> int:
    with (
        tempfile.TemporaryDirectory() as folder,
        server_process(Path(folder), ("build_fake", "--port=0"), start=FAKE) as server,
    ):
        assert server.url, server.log
        command = [
            str(Path(schemathesis).absolute()),
            "run",
            f"{server.url}/openapi.json",
            f"--checks={','.join(CHECKS)}",
        ]
        return subprocess.run(
            [*command, "--phases=coverage,fuzzing", "--warnings=off", *options],
            cwd=folder,  # where it leaves its notes
            check=False,
        ).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
