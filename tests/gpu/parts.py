"""What there is to check, part by part: each runs in a process of its own (`run_part`)."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import IO

from hasten.kernels.conformance import Verdict, run_conformance
from hasten.kernels.dtypes import DType

from tests.gpu.bits import check_bits
from tests.gpu.graphs import check_graphs
from tests.gpu.models import SCHEMES
from tests.gpu.rooflines import Peaks, check_attention, check_others, check_peaks, check_products
from tests.gpu.serving import KINDS as SERVED
from tests.gpu.serving import check_serving
from tests.gpu.setting import Row, Setting
from tests.gpu.texts import KINDS as TEXTS
from tests.gpu.texts import check_texts

NUM_SHARES = 8
"""Processes among which the conformance suite is divided: compiling takes most of its time."""
TINY_CASES = slice(1, 14, 6)


@dataclass(frozen=True, slots=True)
class Part:
    """`group` is the table of the report that its rows belong to."""

    group: str
    name: str
    run: Callable[[Setting], Iterator[Row]]


def correctness() -> list[Part]:
    """Parts that do not mind company."""
    bits = [Part("bits", scheme, partial(check_bits, scheme=scheme)) for scheme in SCHEMES]
    texts = [Part("texts", kind, partial(check_texts, kind=kind)) for kind in TEXTS]
    suites = [
        Part("conformance", f"share {i}", partial(check_conformance, share=i))
        for i in range(NUM_SHARES)
    ]
    return [*bits, *suites, *texts]


def speed() -> list[Part]:
    """Parts that want the device for themselves, the most wanted first."""
    serving = [Part("tokens per second", kind, partial(_serve, kind=kind)) for kind in SERVED]
    products = [
        Part("rooflines", f"linear {scheme}", partial(check_products, scheme=scheme))
        for scheme in ("bf16", "fp8", "int4")
    ]
    attention = [
        Part("rooflines", f"attention {dtype}", partial(check_attention, kv_dtype=dtype))
        for dtype in (DType.BF16, DType.FP8_E4M3)
    ]
    others = Part("rooflines", "other ops", check_others)
    graphs = Part("graphs", "graphs", check_graphs)
    peaks = Part("peaks", "peaks", check_peaks)
    return [peaks, graphs, *serving, *products, *attention, others]


def for_tiny(parts: list[Part]) -> list[Part]:
    """One part of each kind, as the interpreter takes its time; texts have a test of their own."""
    wanted = {
        ("bits", "int4"),
        ("conformance", "share 0"),
        ("graphs", "graphs"),
        ("peaks", "peaks"),
        ("tokens per second", "fp8"),
        ("rooflines", "linear fp8"),
        ("rooflines", f"attention {DType.FP8_E4M3}"),
        ("rooflines", "other ops"),
    }
    return [part for part in parts if (part.group, part.name) in wanted]


def run_part(part: Part, setting: Setting, path: Path) -> None:
    """Write each finding to `path` as it is found, a JSON object per line; then how it ended."""
    with path.open("w") as file:
        try:
            for row in part.run(setting):
                _write(file, row)
        except Exception as error:  # noqa: BLE001 (whatever it is, it is the finding)
            traceback.print_exc()
            _write(file, {"failed": f"{type(error).__name__}: {error}"})
        else:
            _write(file, {"finished": True})


def _write(file: IO[str], row: Row) -> None:
    file.write(json.dumps(row) + "\n")
    file.flush()


def check_conformance(setting: Setting, share: int) -> Iterator[Row]:
    """The cases of one share; each row is what `hasten check` would print."""
    taken = TINY_CASES if setting.is_tiny else slice(share, None, NUM_SHARES)
    for row in run_conformance(setting.backend(enforce_eager=True), share=taken).rows:
        yield {
            **{name: value for name, value in asdict(row).items() if name != "verdict"},
            "ok": row.verdict is not Verdict.FAILED,
            "verdict": row.verdict.value,
        }


def _serve(setting: Setting, kind: str) -> Iterator[Row]:
    yield from check_serving(setting, kind, Peaks.measure(setting).bytes_per_s)
