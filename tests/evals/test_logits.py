"""The logits that full distributions come from are those that serving computes."""

from __future__ import annotations

import numpy as np
import pytest
from hasten.core.binding import ModelBinding
from hasten.core.options import EngineOptions, ModelOptions
from hasten.evals import logits
from hasten.evals.engine_target import EngineTarget
from hasten.evals.faults import round_one_layer
from hasten.evals.layers import LayerDifference, parting
from hasten.evals.logits import LogitsReader
from hasten.evals.target import Scored
from hasten.kernels.backend import get_backend

from tests.helpers.random_models import random_model, tiny_config


def binding(kernels: str, windows: tuple[int | None, ...]) -> ModelBinding:
    model = random_model(tiny_config(windows=windows))
    options = EngineOptions(model=ModelOptions(dtype="float32"))
    backend = get_backend(kernels, 1)
    if "float32" not in backend.activation_dtypes:
        pytest.skip(f"kernels {kernels} have no fp32 activations")
    return ModelBinding.resolve(model, backend, options)


@pytest.mark.parametrize("windows", [(None, None), (24, None)])
def test_chunks_and_start_do_not_matter(
    kernels: str, windows: tuple[int | None, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = tuple(np.random.default_rng(0).integers(1, 96, 50).tolist())
    whole = LogitsReader(binding(kernels, windows), 64, 16).read(Scored(ids, 1))
    assert whole.logprobs.shape == (49, 96)
    np.testing.assert_allclose(np.exp(whole.logprobs).sum(axis=1), 1.0, atol=1e-5)
    monkeypatch.setattr(logits, "CHUNK_LEN", 16)
    reader = LogitsReader(binding(kernels, windows), 64, 16)
    for start in (1, 16, 17, 33, 49):
        part = reader.read(Scored(ids, start))
        np.testing.assert_array_equal(part.logprobs, whole.logprobs[start - 1 :])
        assert part.token_ids.tolist() == list(ids[start:])


def test_the_damaged_layer_is_named(kernels: str) -> None:
    sound = binding(kernels, (None,) * 6)
    ids = tuple(np.random.default_rng(0).integers(1, 96, 40).tolist())
    outputs = [
        LogitsReader(one, 64, 16).read_layers(ids) for one in (sound, round_one_layer(sound))
    ]
    assert list(outputs[0])[:2] == ["layers.0.o", "layers.0.down"]
    differences = [
        LayerDifference(name, float(np.linalg.norm(rows - outputs[1][name]) / np.linalg.norm(rows)))
        for name, rows in outputs[0].items()
    ]
    found = parting(differences)
    assert found is not None
    assert found.name == "layers.3.o"


def test_full_distributions_agree_with_what_the_engine_reports(embedded: EngineTarget) -> None:
    ids = embedded.encode("The lighthouse keeper's daughter could not sleep. " * 3)
    scored = Scored(ids, start=4)
    full = embedded.distribution(scored)
    [reported] = embedded.score([scored])
    np.testing.assert_allclose(full.token_logprobs, reported.logprobs, atol=1e-4)
    assert full.top_ids.tolist() == reported.top_ids


def test_scores_do_not_depend_on_what_is_scored_beside_them(embedded: EngineTarget) -> None:
    texts = ("One small text.", "Another, somewhat longer text, which shares nothing with it.")
    asked = [Scored(embedded.encode(text), 1) for text in texts]
    together = embedded.score(asked * 3)
    assert together == [embedded.score([one])[0] for one in asked] * 3
