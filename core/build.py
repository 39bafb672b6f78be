"""From options to an engine that can take requests: the phases of a start, in their order.

    refuse -> load -> settle memory -> compile -> profile -> drafters -> assemble -> report

Each phase is timed (`core.start_report`). What cannot be honoured is refused, by the name of its
flag, before any request arrives. Exercised by `pytest tests/cpu/engine/test_build.py`.
"""

from __future__ import annotations

import gc
import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from hasten.core.assembly import add_drafters, add_pooler, assemble, make_executor
from hasten.core.binding import ModelBinding
from hasten.core.demand import settle_memory, step_capacity
from hasten.core.engine import Engine
from hasten.core.host import release_free_memory
from hasten.core.options import ConfigurationError
from hasten.core.pooling import with_final_hidden
from hasten.core.start_report import Phases, report_lines
from hasten.core.step_profile import profile

if TYPE_CHECKING:
    from collections.abc import Callable

    from hasten.core.options import EngineOptions
    from hasten.core.protocols import GrammarsFactory, SpeculatorFactory

logger = logging.getLogger(__name__)

PROFILE_BUDGET_S = 0.8


def build_engine(
    options: EngineOptions,
    report: Callable[[str], None] = logger.info,
    make_speculator: SpeculatorFactory | None = None,
    make_grammars: GrammarsFactory | None = None,
) -> Engine:
    """An engine for `options`; `report` gets the start-up report, line by line.

    Speculation needs a `make_speculator` (see `hasten.spec`), structured output `make_grammars`
    (see `hasten.api.structured`).

    Raises ConfigurationError for options that cannot be honoured, LoadError for a model that
    cannot be read, UnsupportedOpError for one that the kernels cannot run.
    """
    _refuse_unsupported(options)
    phases = Phases()
    with phases.timed("load"):
        binding = _load(options)
    plan = settle_memory(binding, options)
    capacity = step_capacity(options, plan.max_model_len)
    with phases.timed("compile"):
        executor = make_executor(binding, plan, capacity)
    with phases.timed("profile"):
        num_warm_up_runs = binding.backend.num_warm_up_runs
        step_times = profile(executor.measure, capacity, PROFILE_BUDGET_S, num_warm_up_runs)
    with phases.timed("drafters"):
        drafters = add_drafters(binding, executor, capacity)
    parts = assemble(binding, executor, plan, options, step_times, make_speculator, drafters)
    grammars = None
    if make_grammars is not None:
        grammars = make_grammars(options, binding.has_idle_processor)
    parts = replace(parts, grammars=grammars, pooler=add_pooler(binding, executor))
    for line in report_lines(parts.ready.model_name, binding, plan, phases):
        report(line)
    engine = Engine(parts)
    del binding  # and with it the weights, from which the executables made their own
    _settle_heap()
    return engine


def _refuse_unsupported(options: EngineOptions) -> None:
    """Options that exist, and that nothing here implements yet."""
    if options.execution.tensor_parallel_size != 1:
        raise ConfigurationError(
            f"--tensor-parallel-size {options.execution.tensor_parallel_size} is not supported yet"
        )


def _load(options: EngineOptions) -> ModelBinding:
    binding = ModelBinding.load(options)
    if not options.model.enable_embeddings:
        return binding
    return replace(binding, program=with_final_hidden(binding.program))


def _settle_heap() -> None:
    """Give back what the start took, and keep the garbage collector off what stays.

    What exists now lives as long as the engine: collections, which stop every stream for as long
    as they take, need not walk over it.
    """
    gc.collect()
    gc.freeze()
    release_free_memory()
