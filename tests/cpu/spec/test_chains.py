"""Chains of drafting passes: at once or one by one they guess alike, and bad ones are refused."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from hasten.core.drafter import FeatureStore
from hasten.core.latency import Chunk
from hasten.core.loading.eagle import Target, load_eagle
from hasten.core.models.decoder import feature_tap
from hasten.core.models.eagle import FEATURES, HIDDEN, build_eagle_program
from hasten.core.runner import InProcessExecutor, dummy_batch
from hasten.kernels.backend import Executable, KVPlan, StoresTaps, get_backend
from hasten.kernels.chains import Chain, DraftStep, HeadInputs, RunsChains, SinglePasses
from hasten.kernels.dtypes import DType
from hasten.kernels.ops import PagedAttention, RopeStoreKV
from hasten.kernels.program import Capacity, KVLayer
from hasten.kernels.step import F32, I32

from tests.helpers.eagle_heads import write_head
from tests.helpers.flat_steps import greedy_rows
from tests.helpers.random_models import random_model, tiny_config

TARGET = random_model(tiny_config(windows=(None,) * 3))
BLOCK_SIZE, NUM_BLOCKS, NUM_REQUESTS, MAX_LEN = 16, 13, 3, 64
TABLES = np.arange(1, NUM_BLOCKS, dtype=np.int32).reshape(NUM_REQUESTS, -1)


def ints(*values: int) -> I32:
    return np.array(values, np.int32)


@dataclass
class Head:
    """A tiny head with features, as a chain of either kind."""

    executable: Executable
    passes: RunsChains

    @classmethod
    def make(cls, folder: Path, kernels: str, *, is_whole: bool) -> Head:
        folder = write_head(folder / "head", TARGET.config, "specforge")
        head = load_eagle(folder, Target(TARGET.config, TARGET.weights))
        program = build_eagle_program(head.config, DType.F32, DType.F32)
        plan = KVPlan(program.kv_groups, (NUM_BLOCKS,), BLOCK_SIZE)
        backend = get_backend(kernels, num_threads=2)
        capacity = Capacity(32, NUM_REQUESTS, NUM_REQUESTS, max_model_len=MAX_LEN)
        kv_cache = backend.allocate_kv(plan)
        executable = backend.compile(program, head.weights, kv_cache, capacity)
        rng = np.random.default_rng(3)
        known = rng.standard_normal((NUM_BLOCKS * BLOCK_SIZE, head.config.feature_width))
        width = TARGET.config.hidden_size
        inputs = HeadInputs(known.astype(ml_dtypes.bfloat16), FEATURES, HIDDEN, width)
        passes: RunsChains = SinglePasses(executable, BLOCK_SIZE)
        if is_whole:
            assert isinstance(executable, RunsChains)
            passes = executable
        passes.bind_chain(Chain(range(1), 0.5, head.draft_ids, inputs))
        return cls(executable, passes)

    def draft(
        self, step: DraftStep, num_passes: int, least: float = 0.0
    ) -> tuple[list[list[int]], npt.NDArray[np.float32]]:
        """All levels, gone on with where the chain returns early; requests that fall below `least`
        take part for as long as one does not."""
        survivals = np.ones(len(step.guessing), np.float32)
        tokens: list[list[int]] = []
        confidences: list[F32] = []
        ends = (step.starts + np.diff(step.query_starts))[step.guessing]
        rows = step.table_rows[step.guessing]
        while len(tokens) < num_passes and survivals.max() >= least:
            found = self.passes.run_chain(step, num_passes - len(tokens), least, survivals)
            tokens += found[0].tolist()
            confidences += list(found[1].copy())
            count = len(rows)
            step = replace(
                step,
                token_ids=ints(*tokens[-1]),
                query_starts=np.arange(count + 1, dtype=np.int32),
                starts=(ends + len(tokens) - 1).astype(np.int32),
                table_rows=rows,
                guessing=np.arange(count, dtype=np.int32),
                hidden=None if step.sampling else self.executable.tap(HIDDEN).copy(),
            )
        return tokens, np.array(confidences)


def first_step() -> DraftStep:
    """Three requests behind by four tokens, one and three; the last wants no guess."""
    return DraftStep(
        token_ids=ints(5, 17, 40, 2, 33, 60, 61, 62),
        query_starts=ints(0, 4, 5, 8),
        starts=ints(0, 21, 14),
        table_rows=ints(2, 0, 1),
        guessing=ints(0, 1),
        tables=(TABLES,),
        sampling=None,
    )


@pytest.fixture
def whole(tmp_path: Path, kernels: str) -> Head:
    if kernels != "cpu":
        pytest.skip("runs one pass at a time")
    return Head.make(tmp_path, kernels, is_whole=True)


@pytest.mark.parametrize("least", [0.0, 1e-3])
def test_at_once_is_one_by_one(whole: Head, tmp_path: Path, least: float) -> None:
    expected = Head.make(tmp_path, "reference", is_whole=False).draft(first_step(), 5, least)
    singles = Head.make(tmp_path, "cpu", is_whole=False).draft(first_step(), 5, least)
    found = whole.draft(first_step(), 5, least)
    assert found[0] == singles[0] == expected[0]
    np.testing.assert_allclose(found[1], singles[1], rtol=1e-6)
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-3)


def test_it_ends_with_the_first_request_that_falls_below_the_least(whole: Head) -> None:
    survivals = np.ones(2, np.float32)
    tokens, confidences = whole.passes.run_chain(first_step(), 5, 0.0, survivals)
    assert tokens.shape == confidences.shape == (5, 2)
    np.testing.assert_allclose(survivals, confidences.prod(axis=0), rtol=1e-5)
    least = float(confidences[0].min()) * 1.01
    tokens, _ = whole.passes.run_chain(first_step(), 5, least, np.ones(2, np.float32))
    assert len(tokens) == 1


def test_who_only_catches_up_guesses_nothing(whole: Head) -> None:
    step = replace(first_step(), guessing=ints())
    tokens, confidences = whole.passes.run_chain(step, 3, 0.0, np.ones(0, np.float32))
    assert tokens.shape == confidences.shape == (1, 0)


@pytest.mark.parametrize("kernels_of_one", ["reference", "cpu"])
def test_a_sampled_chain_of_a_model_is_one_by_one_too(kernels: str, kernels_of_one: str) -> None:
    """With its own noise at every position, masks, and a KV group that is not the chain's."""
    if kernels != "cpu":
        pytest.skip("runs one pass at a time")
    found, expected = (
        _sampled(name, is_whole=is_whole)
        for name, is_whole in (("cpu", True), (kernels_of_one, False))
    )
    assert found[0] == expected[0]
    assert len({tuple(level) for level in found[0]}) > 1
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-3)
    assert found[1].min() >= 0.5, "the least that is shared"


def _sampled(kernels: str, *, is_whole: bool) -> tuple[list[list[int]], F32]:
    """Four levels for two requests of a model whose KV group is the second of two."""
    program = TARGET.build_program(DType.F32, DType.F32)
    spec = program.kv_groups[0]
    ops = [
        replace(op, kv=KVLayer(1, op.kv.layer_idx))
        if isinstance(op, RopeStoreKV | PagedAttention)
        else op
        for op in program.ops
    ]
    program = replace(program, kv_groups=(spec, spec), ops=ops)
    plan = KVPlan(program.kv_groups, (NUM_BLOCKS, NUM_BLOCKS), BLOCK_SIZE)
    backend = get_backend(kernels, num_threads=2)
    capacity = Capacity(32, NUM_REQUESTS, NUM_REQUESTS, max_model_len=MAX_LEN)
    executable = backend.compile(program, TARGET.weights, backend.allocate_kv(plan), capacity)
    passes: RunsChains = SinglePasses(executable, BLOCK_SIZE)
    if is_whole:
        assert isinstance(executable, RunsChains)
        passes = executable
    passes.bind_chain(Chain(range(1, 2), 0.5))
    sampling = greedy_rows(2)
    sampling.num_logprobs = ints(0, 0)
    sampling.temperature = np.array([0.9, 1.3], np.float32)
    sampling.mask_idx = ints(-1, 1)
    sampling.masks = np.full((2, 3), 0x0F0F0F0F, np.uint32)
    other = np.full_like(TABLES, NUM_BLOCKS - 1)  # whose rows would be written by mistake
    step = replace(first_step(), tables=(other, TABLES), sampling=sampling)
    return Head(executable, passes).draft(step, 4)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"query_starts": ints(0, 4, 5, 7)}, "query_starts"),
        ({"query_starts": ints(0, 5, 5, 8)}, "ascend"),
        ({"query_starts": ints(0, 4, 8)}, "one longer"),
        ({"starts": ints(0, -1, 14)}, "before its first token"),
        ({"starts": ints(0, 63, 14)}, "past a block table"),
        ({"table_rows": ints(2, 0, 3)}, "table_rows"),
        ({"guessing": ints(1, 0)}, "guesses"),
        ({"guessing": ints(0, 3)}, "guesses"),
        ({"token_ids": ints(5, 17, 40, 2, 33, 60, 61, 96)}, "token_ids"),
        ({"hidden": np.zeros((7, TARGET.config.hidden_size), np.float32)}, "hidden"),
        ({"tables": (TABLES, TABLES)}, "table"),
    ],
)
def test_bad_steps_are_refused(whole: Head, changed: dict[str, object], message: str) -> None:
    step = replace(first_step(), **changed)  # type: ignore[arg-type]  # what is wrong with it
    with pytest.raises(ValueError, match=message):
        whole.passes.run_chain(step, 2, 0.0, np.ones(2, np.float32))
    with pytest.raises(ValueError, match="survivals"):
        whole.passes.run_chain(first_step(), 2, 0.0, np.ones(3, np.float32))
    assert whole.draft(first_step(), 2)[0], "and others are run after it"


def test_taps_are_kept_by_slot_as_the_store_keeps_them() -> None:
    """Copied blocks as well: by the native program, and by numpy after each step."""
    layers = (1, 3)
    program = TARGET.build_program(DType.F32, DType.F32, layers)
    plan = KVPlan(program.kv_groups, (NUM_BLOCKS,), BLOCK_SIZE)
    capacity = Capacity(32, NUM_REQUESTS, NUM_REQUESTS, max_model_len=MAX_LEN)
    rows = []
    for stores_taps in (True, False):
        executor = InProcessExecutor(
            get_backend("cpu", num_threads=2), program, TARGET.weights, plan, capacity
        )
        assert isinstance(executor._executable, StoresTaps)
        store = FeatureStore(layers, TARGET.config.hidden_size, plan, 0)
        if stores_taps:
            executor.keep_features_by_slot(store)
        else:
            executor.keep_features(store)
        for start, copies in ((0, []), (20, [(2, 5)])):
            batch = dummy_batch([Chunk(start, 20, 1)], plan, MAX_LEN)
            batch.token_ids[:] = np.arange(20) + start
            group = batch.groups[0]
            group.block_tables[0] = TABLES[0]
            positions = batch.positions
            group.slot_mapping[:] = TABLES[0][positions // BLOCK_SIZE] * BLOCK_SIZE + positions % 16
            group.block_copies = np.array(copies, np.int32).reshape(-1, 2)
            executor.execute(batch)
        rows.append(store.rows.astype(np.float32))
    assert feature_tap(1) in program.taps
    assert np.abs(rows[0]).sum(axis=1).astype(bool).sum() == 40 + 4, "4 were in the copied block"
    np.testing.assert_array_equal(rows[0], rows[1])
