"""The reference backend: every op in plain torch, readable, correct, selectable.

One file per op. Each has `supports(op, weights) -> reason or None` and `bind(op, binder)`, which
resolves buffers and weights once and returns the function that a step calls. Not here: what the
ops mean (`kernels.ops`). Exercised by `pytest tests/cpu/kernels` and `hasten check`.
"""

from hasten.kernels.reference.backend import ReferenceBackend

__all__ = ["ReferenceBackend"]
