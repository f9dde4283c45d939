"""A product on the CPU whose rows do not know how many there are."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from cohort.kernels import onednn_product as onednn_module
from cohort.kernels import row_stable_product as module
from cohort.kernels.row_stable_product import row_stable_product


@pytest.fixture(autouse=True)
def _threads_as_before() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(
    ("inner", "outer"),
    [(172, 64), (512, 512), (513, 64), (1000, 64), (1027, 576), (2048, 512), (1024, 2048), (4096, 24)],
)
def test_a_row_has_the_same_bits_in_any_number_of_rows(inner: int, outer: int, *, transposed: bool) -> None:
    generator = torch.Generator().manual_seed(inner)
    row, w_NK = torch.randn(inner, generator=generator), torch.randn(inner, outer, generator=generator)
    if transposed:
        w_NK = w_NK.t().contiguous().t()
    first: torch.Tensor | None = None
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for num_rows in (1, 2, 5, 17, 32, 39, 48, 112, 176, 192, 272, 400, 640):
            for place in (0, num_rows // 2, num_rows - 1):
                x_TN = torch.randn(num_rows, inner, generator=generator)
                x_TN[place] = row
                found = row_stable_product(x_TN, w_NK)[place]
                first = found if first is None else first
                assert torch.equal(found, first), (threads, num_rows, place)


@pytest.mark.parametrize("inner", [1, 40, 511, 512, 513, 1024, 1100])
@pytest.mark.parametrize("num_rows", [0, 1, 33])
@pytest.mark.parametrize("with_bias", [False, True])
def test_it_is_the_product(num_rows: int, inner: int, *, with_bias: bool) -> None:
    x_TN, w_NK = torch.randn(num_rows, inner, dtype=torch.float64), torch.randn(inner, 24, dtype=torch.float64)
    bias_K = torch.randn(24, dtype=torch.float64) if with_bias else None
    expected = x_TN @ w_NK + (0 if bias_K is None else bias_K)
    # sums of at most 1,100 products in another order: some units in the last place of the largest partial sum
    torch.testing.assert_close(row_stable_product(x_TN, w_NK, bias_K), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("mkl_leads", [False, True])
def test_onednn_multiplies_where_mkl_does_not_lead(monkeypatch: pytest.MonkeyPatch, *, mkl_leads: bool) -> None:
    asked = []

    def product(*operands: torch.Tensor | None) -> None:
        asked.append(operands)

    monkeypatch.setattr(module, "_mkl_leads", lambda: mkl_leads)
    monkeypatch.setattr(module, "onednn_product", product)
    row_stable_product(torch.randn(32, 192), torch.randn(192, 192))
    assert bool(asked) is not mkl_leads


@pytest.mark.parametrize("mkl_leads", [False, True])
@pytest.mark.parametrize("num_rows", [0, 1, 7, 16, 33, 48])
def test_rows_that_were_filled_up_may_be_added_to(
    monkeypatch: pytest.MonkeyPatch, num_rows: int, *, mkl_leads: bool
) -> None:
    """Autograd refuses to add in place to a view that one of its functions returns."""
    if not mkl_leads and not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        pytest.skip("this torch has no products by oneDNN")
    monkeypatch.setattr(module, "_mkl_leads", lambda: mkl_leads)
    x_TN, w_NK = torch.randn(num_rows, 192), torch.randn(192, 192)
    # as where oneDNN gives rows their own bits from 16 rows on
    monkeypatch.setattr(onednn_module, "_least_rows", lambda _: 16)
    found_TK = row_stable_product(x_TN, w_NK)
    assert not found_TK._is_view()
    # by 192 products in another order, of numbers about 1
    torch.testing.assert_close(found_TK, x_TN @ w_NK, rtol=1e-4, atol=1e-4)
