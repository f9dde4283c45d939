"""The BLAS in place of our product: only where it gave the very bits, and only for sizes that come again."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")

from cohort.kernels.exact_product import AgreedShapes, agreed_blas, exact_product
from cohort.kernels.exact_product.agreed_blas import LEAST_WASTE, blas_agrees
from cohort.kernels.exact_product.kept_answers import KeptAnswers
from cohort.kernels.packed_linear.hopper.launch import exact_hopper_product, runs_hopper, wasted_share
from cohort.kernels.packed_linear.launch.support import num_multiprocessors


def test_sizes_that_do_not_come_again_are_not_asked() -> None:
    weight, agreed = torch.zeros(64, 64), AgreedShapes()
    for rows in (1, 100, 130, 8192):
        assert not blas_agrees(torch.zeros(rows, 64), weight, forward=True, agreed=agreed)
    # rows side by side in a wider matrix
    assert not blas_agrees(torch.zeros(128, 80)[:, :64], weight, forward=True, agreed=agreed)
    assert not agreed.answers


@pytest.mark.parametrize("forward", [True, False])
@pytest.mark.parametrize("agrees", [True, False])
def test_a_weight_of_zeros_says_nothing_about_others(
    monkeypatch: pytest.MonkeyPatch, forward: bool, agrees: bool
) -> None:
    def exact(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, *, forward: bool) -> None:
        agreed_blas.blas_product(x, weight, out, forward=forward)
        # a sum that is cut elsewhere is rounded otherwise
        out.mul_(1 if agrees else 1 + 2**-7)

    monkeypatch.setattr(agreed_blas, "exact_hopper_product", exact)
    x, weight = torch.zeros(4, 64, dtype=torch.bfloat16), torch.zeros(64, 64, dtype=torch.bfloat16)
    assert agreed_blas._ask(x, weight, forward=forward) is agrees


def test_each_product_is_asked_about_once_and_only_as_an_allocator_lays_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[tuple[int, ...], bool]] = []

    def ask(x: torch.Tensor, weight: torch.Tensor, *, forward: bool) -> bool:
        asked.append(((x.shape[0], *weight.shape), forward))
        return forward

    answers = KeptAnswers(None)
    for name, value in (
        ("_ask", ask),
        ("wasted_share", lambda *_, **__: 1.0),
        ("num_multiprocessors", lambda _: 132),
        ("kept_answers", lambda _: answers),
    ):
        monkeypatch.setattr(agreed_blas, name, value)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    # memory that begins at a multiple of what a BLAS looks at
    room = torch.zeros(1 << 20, dtype=torch.bfloat16)
    start = -room.data_ptr() % agreed_blas.ALIGNMENT // 2
    x, weight = room[start:][: 128 * 64].view(128, 64), room[start + 128 * 64 :][: 64 * 64].view(64, 64)
    agreed = AgreedShapes()
    for _ in range(2):
        assert blas_agrees(x, weight, forward=True, agreed=agreed)
        assert not blas_agrees(x, weight, forward=False, agreed=agreed)
    # another model of the process
    assert blas_agrees(x, weight, forward=True, agreed=AgreedShapes())
    assert asked == [((128, 64, 64), True), ((128, 64, 64), False)]
    shifted = room[start + 8 :][: 128 * 64].view(128, 64)
    assert not blas_agrees(shifted, weight, forward=True, agreed=agreed)
    assert not blas_agrees(x, room[start + 8 :][: 64 * 64].view(64, 64), forward=True, agreed=agreed)
    assert len(asked) == 2


def test_what_was_not_launched_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreed_blas, "exact_hopper_product", lambda *_, **__: None)
    x, weight = torch.zeros(4, 64, dtype=torch.bfloat16), torch.zeros(64, 64, dtype=torch.bfloat16)
    assert agreed_blas._ask(x, weight, forward=True) is None


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [128, 256, 1024, 1152, 1280, 2048])
@pytest.mark.parametrize("shape", [(4096, 4096), (2048, 8192), (8192, 2048)])
def test_whatever_computes_it_the_bits_are_the_same(rows: int, shape: tuple[int, int]) -> None:
    if not runs_hopper(torch.device("cuda")):
        pytest.skip("not a Hopper")
    agreed = AgreedShapes()
    weight = (torch.randn(*shape, device="cuda") * 0.02).bfloat16()
    for forward in (True, False):
        x = torch.randn(rows, shape[1 if forward else 0], device="cuda").bfloat16()
        found = exact_product(x, weight, forward=forward, agreed=agreed)
        ours = torch.empty_like(found)
        exact_hopper_product(x, weight, ours, forward=forward)
        assert torch.equal(found, ours)
        # and those of one row in a short stream
        few = exact_product(x[17:20], weight, forward=forward, agreed=agreed)
        assert torch.equal(few, found[17:20])
    wasted = [wasted_share(rows, width, programs=num_multiprocessors(x.device)) for width in shape]
    assert bool(agreed.answers) == (max(wasted) >= LEAST_WASTE)


@pytest.mark.gpu
def test_what_was_answered_before_is_not_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not runs_hopper(torch.device("cuda")):
        pytest.skip("not a Hopper")
    kept, asked = tmp_path / "answers.jsonl", list[int]()
    ask = agreed_blas._ask

    def counted(x: torch.Tensor, weight: torch.Tensor, *, forward: bool) -> bool | None:
        asked.append(x.shape[0])
        return ask(x, weight, forward=forward)

    monkeypatch.setattr(agreed_blas, "_ask", counted)
    weight = (torch.randn(4096, 4096, device="cuda") * 0.02).bfloat16()
    found = []
    for _ in range(2):
        # as another process would find them
        answers = KeptAnswers(kept)
        monkeypatch.setattr(agreed_blas, "kept_answers", lambda device, answers=answers: answers)
        agreed = AgreedShapes()
        for rows in (128, 1152):
            exact_product(torch.randn(rows, 4096, device="cuda").bfloat16(), weight, forward=True, agreed=agreed)
        found.append([*agreed.answers.values()])
    assert found[0] == found[1]
    assert asked == [128, 1152]
