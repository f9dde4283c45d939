"""Products of any number of rows, cut into runs or filled up to the least height."""

from __future__ import annotations

import pytest
import torch

from cohort.kernels.packed_linear.row_runs import add_row_product, row_product
from cohort.kernels.packed_linear.term_heights import MOST_ROWS

COUNTS = (0, 1, 3, 4, MOST_ROWS, MOST_ROWS + 1, 2 * MOST_ROWS, 5 * MOST_ROWS - 7)


@pytest.mark.parametrize("count", COUNTS)
def test_equals_one_product(count: int) -> None:
    generator = torch.Generator().manual_seed(count)
    x, w, y = (
        torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((count, 8), (8, 5), (count, 5))
    )
    torch.testing.assert_close(row_product(x, w, least=4), x @ w)
    expected = y + 0.5 * (x @ w)
    # columns of a wider product
    found = torch.zeros(count, 9, dtype=torch.float64)
    found[:, 2:7] = y
    add_row_product(found[:, 2:7], x, w, alpha=0.5, least=4)
    torch.testing.assert_close(found[:, 2:7], expected)
    assert not found[:, :2].any()
    assert not found[:, 7:].any()


@pytest.mark.parametrize("count", COUNTS)
def test_no_product_is_lower_than_the_least_or_taller_than_the_most(
    monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    heights: list[int] = []
    multiply = torch.mm

    def mm(x: torch.Tensor, w: torch.Tensor, **room: torch.Tensor) -> torch.Tensor:
        heights.append(len(x))
        return multiply(x, w, **room)

    monkeypatch.setattr(torch, "mm", mm)
    row_product(torch.zeros(count, 8), torch.zeros(8, 4), least=32)
    assert all(32 <= height <= MOST_ROWS for height in heights)
