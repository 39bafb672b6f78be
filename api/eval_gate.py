"""`hasten serve --require-eval`: only what has passed its evaluation becomes ready.

What is looked up is the configuration of the engine that runs (it says itself what it loaded), so
no flag can be forgotten. Exercised by `pytest tests/evals/test_require_eval.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hasten.api.text import TextCodec
    from hasten.core.options import EngineOptions, ServerOptions


class EvalRequiredError(RuntimeError):
    """This configuration may not be served; the message says what differs from one that may."""


def require_eval(
    engine: EngineOptions, identity: dict[str, str], tokenizer: TextCodec, server: ServerOptions
) -> str:
    """One line on the record by which this engine may be served; empty if none is required.

    `identity` is what the engine says of itself (`EngineReady`). Raises EvalRequiredError.
    """
    if server.require_eval is None:
        return ""
    try:
        from hasten.evals.engine_configuration import check_evaluated, describe, template_source
        from hasten.evals.store import NotEvaluatedError
        from hasten.evals.suite import SuiteError, load_suite
    except ModuleNotFoundError as error:
        raise EvalRequiredError(
            f"--require-eval needs {error.name}: pip install 'hasten[evals]'"
        ) from error
    try:
        suite = load_suite(server.require_eval)
        configuration = describe(identity, engine, tokenizer, template_source(engine, tokenizer))
        record = check_evaluated(configuration, suite, server.eval_store, _key(server))
    except (NotEvaluatedError, SuiteError, OSError) as error:
        raise EvalRequiredError(f"--require-eval {server.require_eval}: {error}") from error
    return f"evaluated: record {record.record_id} passes {suite.name!r}, {record.created}"


def _key(server: ServerOptions) -> bytes | None:
    path = server.eval_key_file
    return None if path is None else Path(path).read_bytes().strip()
