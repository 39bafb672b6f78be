"""A row's bits do not depend on its company: products of the embedded model's shapes, at 1 to 3
threads, and the elementwise functions that the reference backend relies on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from hasten.kernels.reference.act_mul import _ACTIVATIONS
from hasten.kernels.reference.binding import MIN_ROWS
from hasten.kernels.reference.linear import make_product
from hasten.kernels.reference.rms_norm import normalize

ROWS = (*range(MIN_ROWS, 36), 63, 64, 65, 127, 129, 200, 255, 257, 511, 512)
SHAPES = ((576, 960), (576, 576), (576, 3072), (1536, 576), (65, 33), (7, 5))
DTYPES = (torch.bfloat16, torch.float32)


@pytest.fixture(autouse=True, params=[1, 2, 3])
def num_threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def random_rows(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(4))


def assert_rows_equal(
    function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, rows: tuple[int, ...]
) -> None:
    """The first rows, and rows from 5 on, are those of the whole."""
    whole = function(x)
    for num_rows in rows:
        assert torch.equal(function(x[:num_rows]), whole[:num_rows]), num_rows
        moved = x[5 : 5 + num_rows]
        assert torch.equal(function(moved), whole[5 : 5 + len(moved)]), num_rows


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_product(shape: tuple[int, int], dtype: torch.dtype) -> None:
    width, out_width = shape
    product = make_product(random_rows(out_width, width).to(dtype), None)
    assert_rows_equal(product, random_rows(520, width).to(dtype), ROWS)


def test_product_with_the_vocabulary() -> None:
    product = make_product(random_rows(49152, 576), None)
    assert_rows_equal(product, random_rows(40, 576), (4, 5, 16, 17, 33))


@pytest.mark.parametrize("activation", _ACTIVATIONS)
def test_activation(activation: str) -> None:
    function = {str(key): value for key, value in _ACTIVATIONS.items()}[str(activation)]
    assert_rows_equal(function, 3 * random_rows(130, 1537), (1, 2, 3, 7, 64, 125))


@pytest.mark.parametrize("width", [37, 576, 40000])
def test_norm(width: int) -> None:
    weight = random_rows(width)
    assert_rows_equal(lambda x: normalize(x, weight, 1e-5), random_rows(90, width), (1, 2, 3, 64))
