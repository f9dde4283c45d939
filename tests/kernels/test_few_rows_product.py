"""Products of few rows by a weight that is arranged once: the bits of any other number of rows."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from cohort.kernels import few_rows_product as module
from cohort.kernels.few_rows_product import MOST_FEW_ROWS, FewRowsWeight
from cohort.kernels.row_stable_product import row_stable_product
from cohort.training.device_memory import StorageMeter


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    threads = torch.get_num_threads()
    module._asked.cache_clear()
    yield
    torch.set_num_threads(threads)
    module._asked.cache_clear()


# what a model of 192 and one of 512 hidden values multiply, and widths that fill no vector
SHAPES = [(192, 320), (192, 192), (384, 192), (512, 1024), (1408, 512), (172, 64), (130, 201), (64, 24)]


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("inner", "width"), SHAPES)
def test_a_row_has_the_bits_of_any_number_of_rows(inner: int, width: int, threads: int, *, with_bias: bool) -> None:
    torch.set_num_threads(threads)
    generator = torch.Generator().manual_seed(inner)
    weight_NK = torch.randn(width, inner, generator=generator) * 0.1
    bias_N = torch.randn(width, generator=generator) if with_bias else None
    x_TK = torch.randn(200, inner, generator=generator)
    expected_TN = row_stable_product(x_TK, weight_NK.t(), bias_N)
    arranged, computed = FewRowsWeight(weight_NK, bias_N), 0
    for num_rows in range(1, MOST_FEW_ROWS + 2):
        first = int(torch.randint(200 - num_rows, (1,), generator=generator))
        own = slice(first, first + num_rows)
        found_TN = arranged.product(x_TK[own])
        if found_TN is not None:
            computed += 1
            assert found_TN.shape == (num_rows, width)
            assert not found_TN._is_view(), "a model may add to it in place"
            assert torch.equal(found_TN, expected_TN[own]), num_rows
        # other code gives the same bits where it is asked for so few rows
        assert torch.equal(row_stable_product(x_TK[own], weight_NK.t(), bias_N), expected_TN[own]), num_rows
    assert arranged.product(x_TK[:0]) is None
    assert arranged.product(x_TK[: MOST_FEW_ROWS + 1]) is None
    if not computed:
        pytest.skip(f"no arrangement of {inner} x {width} keeps bits on this machine")


def test_a_row_that_is_not_finite_leaves_the_others_alone() -> None:
    weight_NK, x_TK = torch.randn(320, 192), torch.randn(7, 192)
    arranged = FewRowsWeight(weight_NK)
    expected_TN = arranged.product(x_TK.clone())
    x_TK[3] = torch.nan
    found_TN = arranged.product(x_TK)
    if expected_TN is None or found_TN is None:
        pytest.skip("no arrangement keeps bits on this machine")
    others = [0, 1, 2, 4, 5, 6]
    assert torch.equal(found_TN[others], expected_TN[others])
    assert found_TN[3].isnan().all()


def off_below(height: int) -> module._Multiply:
    """Return a product that is wrong in the last place for fewer rows than ``height``."""

    def multiply(x_HK: Tensor, arranged_KN: Tensor, bias_N: Tensor | None) -> Tensor:
        padded_HK = torch.cat([x_HK, x_HK.new_zeros(32, x_HK.shape[1])])
        y_HN = row_stable_product(padded_HK, arranged_KN, bias_N)[: len(x_HK)]
        return y_HN if len(x_HK) >= height else torch.nextafter(y_HN, torch.tensor(torch.inf))

    return multiply


@pytest.mark.parametrize(
    ("first", "second", "way", "heights"),
    [(1, 1, "first", {1: 1, 5: 6, 7: 8}), (3, 1, "first", {1: 3, 2: 3, 3: 3}), (6, 2, "second", {1: 2, 2: 2, 3: 3})],
)
def test_it_takes_the_first_arrangement_that_keeps_bits_and_fills_up_to_its_rows(
    monkeypatch: pytest.MonkeyPatch, first: int, second: int, way: str, heights: dict[int, int]
) -> None:
    arranged, multiplied = [], []

    def counted(name: str, height: int) -> tuple[module._Arrange, module._Multiply]:
        def arrange(weight_NK: Tensor) -> Tensor:
            arranged.append(name)
            return weight_NK.t().contiguous()

        def multiply(x_HK: Tensor, arranged_KN: Tensor, bias_N: Tensor | None) -> Tensor:
            multiplied.append((name, len(x_HK)))
            return off_below(height)(x_HK, arranged_KN, bias_N)

        return arrange, multiply

    monkeypatch.setattr(module, "_WAYS", {"first": counted("first", first), "second": counted("second", second)})
    monkeypatch.setattr(module, "_is_open", lambda *_: True)
    weight = FewRowsWeight(torch.randn(64, 128))
    for num_rows, height in heights.items():
        found_TN = weight.product(torch.randn(num_rows, 128))
        assert found_TN is not None
        assert len(found_TN) == num_rows
        assert multiplied[-1] == (way, height)
    # once to ask and once for the weight itself
    assert arranged.count(way) == 2


def test_other_code_multiplies_where_nothing_keeps_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_WAYS", {"lying": (module._lying, off_below(8))})
    assert FewRowsWeight(torch.randn(64, 128)).product(torch.randn(1, 128)) is None


def test_torch_need_not_have_the_private_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.ops, "mkldnn", SimpleNamespace())
    weight_NK, x_TK = torch.randn(64, 128), torch.randn(3, 128)
    found_TN = FewRowsWeight(weight_NK).product(x_TK)
    if found_TN is not None:
        # sums of 128 products of about 1
        torch.testing.assert_close(found_TN.double(), x_TK.double() @ weight_NK.double().t(), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("way", ["lying", "packed"])
def test_a_meter_of_a_pass_s_memory_does_not_see_the_copy(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if way == "packed" and not torch.backends.mkldnn.is_available():
        pytest.skip("no oneDNN here")
    monkeypatch.setattr(module, "_asked", lambda *_: module._Answer(way, (2,)))
    weight_NK, meter = torch.randn(64, 64), StorageMeter()
    x_TK = torch.randn(2, 64)
    with meter, torch.no_grad():
        found_TN = FewRowsWeight(weight_NK).product(x_TK)
    assert found_TN is not None
    assert torch.allclose(found_TN, x_TK @ weight_NK.t(), atol=1e-4)
    assert meter.peak_bytes < weight_NK.nbytes
