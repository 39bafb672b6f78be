"""llama.cpp's own benchmark program for parallel streams, run once for each call."""

import json
import os
import subprocess
import sys
from pathlib import Path

from protocol import Generate, answer_calls  # a neighbour: this file is run by its path


def load() -> Generate:
    program, model = sys.argv[1:]
    libraries = {"LD_LIBRARY_PATH": str(Path(program).parent)}

    def generate(prompts: list[list[int]], output_len: int) -> float:
        streams, prompt_len = len(prompts), len(prompts[0])
        size = str(streams * (prompt_len + output_len))
        lengths = ("-npp", str(prompt_len), "-ntg", str(output_len), "-npl", str(streams))
        command = (program, "-m", model, "-c", size, *lengths, "--output-format", "jsonl")
        done = subprocess.run(  # noqa: S603
            command, capture_output=True, text=True, check=True, env=os.environ | libraries
        )
        rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        # Without loading the model, which the others do once.
        return float(rows[-1]["t"])

    return generate


if __name__ == "__main__":
    answer_calls(load)
