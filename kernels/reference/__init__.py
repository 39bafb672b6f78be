"""The reference backend: every op in plain torch, readable, correct, selectable.

One file per op. Each has `supports(op, weights) -> reason or None` and `bind(op, binder)`, which
resolves buffers and weights once and returns the function that a step calls. Not here: what the
ops mean (`kernels.ops`). Exercised by `pytest tests/cpu/kernels` and `hasten check`.

Importing it imports torch. If that is the first import of torch in the process, its OpenMP threads
wait for each other for about 30 microseconds before they sleep: by default they spin for
milliseconds, and where another process wants the same cores every step then stalls for a time
slice (measured: twice the time per step and more). GOMP_SPINCOUNT in the environment wins.

oneDNN, which reads its limit at its first product, is kept from AMX: there a row's bits depend on
how many rows run with it (`tests/cpu/kernels/test_row_invariance.py`). MKL is held to its strict
mode, as its batched products, which attention uses, do the same on some processors.
"""

import os

os.environ.setdefault("GOMP_SPINCOUNT", "2000")
os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX512_CORE_BF16"
os.environ["MKL_CBWR"] = "AUTO,STRICT"

from hasten.kernels.reference.backend import ReferenceBackend

__all__ = ["ReferenceBackend"]
