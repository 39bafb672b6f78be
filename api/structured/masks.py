"""The masks of a step, written by a thread of their own while the model runs.

    step n        [ schedule | batch | model ............................ | sample | ... ]
    this thread                      [ follow accepted tokens | masks ]     ^ waits if it must

Where the model takes every processor, such a thread would displace one of the model's while all
others wait for that one: masks are written before the model runs then, by the thread that calls.

Another thread builds the vocabulary for the first request that needs it, and compiles the grammars
of requests that arrive, so that a large one keeps nobody's masks waiting. A matcher belongs to that
thread until it is ready and to the writer from then on, so there are no locks.

Implements `core.protocols.Grammars`. Exercised by `pytest tests/unit/structured/test_masks.py`.
"""

from __future__ import annotations

import logging
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from hasten.api.structured.closing import Closing, completion
from hasten.api.structured.compiler import GrammarError, refuse_failed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hasten.api.structured.compiler import Vocabulary
    from hasten.core.protocols import MaskJob
    from hasten.core.request import Request, RequestId
    from hasten.kernels.step import I32, U32
    from llguidance import LLMatcher

logger = logging.getLogger(__name__)

MAX_CACHED_GRAMMARS = 64
EVERY_TOKEN = np.uint32(0xFFFFFFFF)


class _Compiled(NamedTuple):
    """A grammar at the beginning of an output, and a short way to its end."""

    matcher: LLMatcher
    shortest: list[int] | None


@dataclass(slots=True, eq=False)
class _Constraint:
    """How far one request has got in its grammar."""

    matcher: LLMatcher
    closing: Closing
    eos_token_ids: tuple[int, ...]
    num_followed: int = 0

    def follow(self, request: Request) -> None:
        """Take the accepted tokens that are new. Raises GrammarError for a forbidden one."""
        new = request.token_ids[request.num_prompt_tokens + self.num_followed :]
        if self.matcher.try_consume_tokens(new) != len(new):
            refuse_failed(self.matcher)
            raise GrammarError("a token was not allowed")
        self.num_followed += len(new)


class GrammarMasks:
    """Follows the grammars of an engine's requests. `load` gives the vocabulary, in a thread."""

    def __init__(self, load: Callable[[], Vocabulary], *, beside_model: bool) -> None:
        self._compiler = ThreadPoolExecutor(1, thread_name_prefix="grammar-compiler")
        self._writer: ThreadPoolExecutor | None = None
        if beside_model:
            self._writer = ThreadPoolExecutor(1, thread_name_prefix="grammar-masks")
        self._load = load
        self._loading: Future[Vocabulary] | None = None
        self._compile = lru_cache(MAX_CACHED_GRAMMARS)(self._compile_new)
        self._constraints: dict[RequestId, Future[_Constraint]] = {}
        self._failures: dict[RequestId, str] = {}

    def prepare(self, request: Request) -> None:
        """See `core.protocols.Grammars`."""
        if self._loading is None:
            self._loading = self._compiler.submit(self._load)
        self._constraints[request.request_id] = self._compiler.submit(self._constrain, request)

    def is_ready(self, request_id: RequestId) -> bool:
        return self._constraints[request_id].done()

    def wait(self, timeout_s: float) -> None:
        begun = [future for future in self._constraints.values() if not future.done()]
        wait(begun, timeout_s, return_when=FIRST_COMPLETED)

    def failure(self, request_id: RequestId) -> str | None:
        return self._failures.get(request_id)

    def forget(self, request_id: RequestId) -> None:
        constraint = self._constraints.pop(request_id, None)
        if constraint is not None:
            constraint.cancel()
        self._failures.pop(request_id, None)

    def _vocabulary(self) -> Vocabulary:
        """Raises what loading it has raised, to every request."""
        assert self._loading is not None, "no request has a grammar"
        return self._loading.result()

    def begin_masks(self, jobs: Sequence[MaskJob], masks: U32, ready: I32) -> None:
        """See `core.protocols.Grammars`."""
        if self._writer is None:
            self._write_all(jobs, masks, ready)
        else:
            self._writer.submit(self._write_all, jobs, masks, ready)

    def _compile_new(self, grammar: str) -> _Compiled:
        vocabulary = self._vocabulary()
        matcher = vocabulary.matcher(grammar)
        return _Compiled(matcher, completion(vocabulary, matcher))

    def _constrain(self, request: Request) -> _Constraint:
        compiled = self._compile(request.params.grammar)
        return _Constraint(
            matcher=compiled.matcher.deep_copy(),
            closing=Closing(compiled.shortest, request.params.max_tokens),
            eos_token_ids=request.params.eos_token_ids,
        )

    def _write_all(self, jobs: Sequence[MaskJob], masks: U32, ready: I32) -> None:
        try:
            # Asked for once: it takes as long as a small mask.
            address, row_bytes = masks.ctypes.data, masks.strides[0]
            for job in jobs:
                rows = masks[job.first_row : job.first_row + len(job.drafts) + 1]
                self._write_job(job, rows, address + job.first_row * row_bytes)
        finally:
            # Whatever happens: the model's threads wait for this.
            ready[0] = 1

    def _write_job(self, job: MaskJob, rows: U32, address: int) -> None:
        request_id = job.request.request_id
        try:
            constraint = self._constraints[request_id].result()
            constraint.follow(job.request)
            self._write_rows(constraint, job.drafts, rows, address)
        except Exception as error:
            # Whatever it is, it ends this request and no other.
            if not isinstance(error, GrammarError):
                logger.exception("masks of request %s", request_id)
            self._failures[request_id] = str(error)
            rows[:] = EVERY_TOKEN

    def _write_rows(
        self, constraint: _Constraint, drafts: Sequence[int], rows: U32, address: int
    ) -> None:
        """The row behind the accepted tokens, and behind each draft while drafts are allowed."""
        matcher, num_ahead = constraint.matcher, 0
        for i, row in enumerate(rows):
            row_address = address + i * rows.strides[0]
            self._write_row(constraint, constraint.num_followed + i, row, row_address)
            if i == len(drafts) or not _is_allowed(row, drafts[i]):
                # No draft can be right from here on: nobody looks at the rows behind.
                rows[i + 1 :] = EVERY_TOKEN
                break
            if drafts[i] not in constraint.eos_token_ids:
                num_ahead += matcher.try_consume_tokens([drafts[i]])
        if num_ahead:
            matcher.rollback(num_ahead)

    def _write_row(
        self, constraint: _Constraint, num_output_tokens: int, row: U32, address: int
    ) -> None:
        """`row` is at `address`. Raises GrammarError when the grammar has become too complex."""
        vocabulary, matcher = self._vocabulary(), constraint.matcher
        only = constraint.closing.next_token(vocabulary, matcher, num_output_tokens)
        row[0 if only is not None else vocabulary.num_words :] = 0
        if only is None:
            matcher.unsafe_compute_mask_ptr(address, vocabulary.num_words * row.itemsize)
        else:
            _allow(row, only)
        refuse_failed(matcher)
        self._name_the_end(constraint, row)

    def _name_the_end(self, constraint: _Constraint, row: U32) -> None:
        """A vocabulary has one end of text; a model may be told of others, or of several."""
        end = self._vocabulary().eos_token_id
        if constraint.eos_token_ids != (end,) and _is_allowed(row, end):
            row[end // 32] &= ~np.uint32(1 << end % 32)
            for token_id in constraint.eos_token_ids:
                _allow(row, token_id)


def _is_allowed(row: U32, token_id: int) -> bool:
    return bool(row[token_id // 32] >> np.uint32(token_id % 32) & 1)


def _allow(row: U32, token_id: int) -> None:
    row[token_id // 32] |= np.uint32(1 << token_id % 32)
