"""What may go wrong in a run without being a bug: told in one line."""

from __future__ import annotations

from hasten.core.loading import LoadError
from hasten.core.options import ConfigurationError
from hasten.evals.journal import JournalError
from hasten.evals.record import RecordError
from hasten.evals.rows import DataError
from hasten.evals.store import StoreError
from hasten.evals.suite import SuiteError
from hasten.evals.target import TargetError
from hasten.evals.tasks.instructions import UnknownInstructionError
from hasten.evals.tasks.sandbox import SandboxError
from hasten.kernels.backend import UnsupportedOpError

EXPECTED = (
    ConfigurationError,
    DataError,
    JournalError,
    LoadError,
    RecordError,
    SandboxError,
    StoreError,
    SuiteError,
    TargetError,
    UnknownInstructionError,
    UnsupportedOpError,
    OSError,
)
