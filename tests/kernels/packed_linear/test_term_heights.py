"""What the BLAS is asked, held against shapes, heights and places that it was not asked with."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from cohort.kernels.packed_linear import term_heights
from cohort.kernels.packed_linear.row_runs import add_row_product, row_product
from cohort.kernels.packed_linear.term_heights import HIGHEST_LEAST, MOST_ROWS, TermShape, least_height


@pytest.fixture(autouse=True)
def restored_threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def shape_of(k: int, n: int, r: int, *, width: int | None = None, stride: int = 1024) -> TermShape:
    return TermShape(
        in_features=k,
        out_features=n,
        product_width=width or n,
        rank=r,
        factor_stride=stride,
        num_threads=torch.get_num_threads(),
    )


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("seed", range(4))
def test_where_it_says_yes_a_row_has_the_same_bits_in_any_number_of_rows(threads: int, seed: int) -> None:
    torch.set_num_threads(threads)
    drawn, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    k, n, r = (4 * drawn.randint(1, most) for most in (150, 150, 16))
    least = least_height(shape_of(k, n, r, width=2 * n))
    if least is None:
        pytest.skip(f"this machine's BLAS changes a row's bits with its height for K {k}, N {n}, r {r}")
    bank = torch.randn(64 + r, 1024, generator=generator)
    a, b = bank[16 : 16 + r, :k].contiguous(), bank[16 : 16 + r, 1024 - n :].contiguous()
    x, y = (torch.randn(900, width, generator=generator) for width in (k, 2 * n))

    def term(rows: slice) -> Tensor:
        s, found = row_product(x[rows], a.t(), least=least), y[rows].clone()
        add_row_product(found[:, n:], s, b, alpha=2.0, least=least)
        return found

    whole = term(slice(0, 900))
    for _ in range(40):
        # one row, a few, and more than one product takes
        count = drawn.choice([1, 2, 3, drawn.randint(1, 40), drawn.randint(1, 600)])
        first = drawn.randint(0, 900 - count)
        rows = slice(first, first + count)
        assert torch.equal(term(rows), whole[rows]), (k, n, r, first, count)


def test_rows_that_are_not_aligned_are_not_asked_about() -> None:
    for shape in (shape_of(6, 8, 4), shape_of(8, 8, 3), shape_of(8, 8, 4, width=10), shape_of(8, 8, 4, stride=1023)):
        assert least_height(shape) is None


@pytest.mark.parametrize(("differs_up_to", "least"), [(0, 1), (3, 4), (31, 32), (32, None), (100, None)])
def test_the_least_height_is_above_all_that_differ(
    monkeypatch: pytest.MonkeyPatch, differs_up_to: int, least: int | None
) -> None:
    def product(first: int, height: int) -> Tensor:
        rows = torch.arange(first, first + height, dtype=torch.float32)
        return rows + 0.5 if height <= differs_up_to else rows

    def products(shape: TermShape, generator: torch.Generator) -> list[Callable[[int, int], Tensor]]:
        del shape, generator
        return [product]

    monkeypatch.setattr(term_heights, "_products", products)
    term_heights._asked.cache_clear()
    try:
        assert HIGHEST_LEAST == 32
        assert least_height(shape_of(8, 8, 4)) == least
    finally:
        term_heights._asked.cache_clear()


def test_every_height_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def product(first: int, height: int) -> Tensor:
        asked.append(height)
        assert 0 <= first <= 2 * MOST_ROWS - height
        return torch.zeros(height)

    monkeypatch.setattr(term_heights, "_products", lambda shape, generator: [product])
    term_heights._asked.cache_clear()
    try:
        assert least_height(shape_of(8, 8, 4)) == 1
    finally:
        term_heights._asked.cache_clear()
    assert set(asked) == set(range(1, MOST_ROWS + 1))
