from __future__ import annotations

import numpy as np
import pytest
from hasten.evals.layers import LayerDifference, compare_layers, parting
from hasten.evals.pair import Pair
from hasten.evals.rows import DataFolder
from hasten.evals.target import CannotMeasureError

from tests.unit.evals.fakes import FakeTarget


def layers(*values: float) -> list[LayerDifference]:
    return [LayerDifference(f"layers.{i}", value) for i, value in enumerate(values)]


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ((0.001, 0.002, 0.3, 0.25, 0.2), "layers.2"),
        ((0.4, 0.3, 0.3), "layers.0"),
        ((0.001, 0.002, 0.004, 0.006), None),
        ((0.01, 0.015, 0.02, 0.03, 0.04, 0.05), None),
        ((), None),
    ],
)
def test_parting_is_a_jump_beyond_all_that_came_before(
    values: tuple[float, ...], name: str | None
) -> None:
    found = parting(layers(*values))
    assert (None if found is None else found.name) == name


def test_equal_sides_do_not_differ_and_noisy_ones_do() -> None:
    base, noisy = FakeTarget("base"), FakeTarget("cand")
    noisy.layer_noise = 0.5
    same = compare_layers(Pair(base, FakeTarget("same"), DataFolder(), base), (1, 2, 3))
    assert [layer.difference for layer in same] == [0.0] * 4
    other = compare_layers(Pair(base, noisy, DataFolder(), base), (1, 2, 3))
    assert min(layer.difference for layer in other) > 0.1


class _Closed(FakeTarget):
    def layer_outputs(self, token_ids: tuple[int, ...]) -> dict[str, np.ndarray]:
        raise CannotMeasureError(f"no layers for {len(token_ids)} tokens")


def test_a_side_that_shows_no_layers_is_no_error() -> None:
    base = FakeTarget("base")
    assert compare_layers(Pair(base, _Closed("cand"), DataFolder(), base), (1, 2, 3)) == []
