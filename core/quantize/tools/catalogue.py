"""The tools that `hasten quantize --backend` can run: what each is made of.

Versions are those that were seen to work together on a CPU; docs/quantisation.md says what each
tool writes and what was found. Which schemes a tool makes: `core.quantize.options.BACKENDS`.
"""

from __future__ import annotations

from dataclasses import dataclass

COMMON = ("torch==2.13.0", "transformers==5.17.0", "accelerate==1.15.0", "datasets>=4.8.4")


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool: the package it is known by, and what `pip install` is called with, one by one.

    `driver` is the program of `drivers/` that runs in the tool's environment.
    """

    package: str
    driver: str
    installs: tuple[tuple[str, ...], ...]
    variables: tuple[tuple[str, str], ...] = ()  # of the driver's environment


TOOLS = {
    "autoawq": Tool(
        "autoawq", "autoawq_driver.py", ((*COMMON, "setuptools", "wheel"), ("autoawq==0.2.9",))
    ),
    "optimum": Tool(
        "optimum",
        "optimum_driver.py",
        (
            (*COMMON, "optimum==2.3.0", "torchao==0.18.0", "defuser==0.0.28", "device-smi==0.5.7",
             "logbar==0.4.15", "pypcre==0.6.4", "threadpoolctl", "tokenicer==0.0.14", "dill",
             "pillow", "protobuf", "requests"),
            # It asks for a newer torch than works with the others, and runs with this one.
            ("--no-deps", "gptqmodel==7.7.0"),
        ),
        # On a CPU it computes in as many threads as it finds devices, unless told.
        variables=(("GPTQMODEL_CPU_WORKERS", "2"),),
    ),
    "llmcompressor": Tool(
        "llmcompressor", "llmcompressor_driver.py", ((*COMMON, "llmcompressor==0.14.0.1"),)
    ),
}  # fmt: skip
