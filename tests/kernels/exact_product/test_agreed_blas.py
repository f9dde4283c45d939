"""The BLAS in place of our product: only where it gave the very bits, and only for sizes that come again."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")

from cohort.kernels.exact_product import (
    AgreedShapes,
    AskedProduct,
    agreed_blas,
    ask_ahead,
    exact_product,
    is_settled,
    load_agreed,
)
from cohort.kernels.exact_product.agreed_blas import LEAST_WASTE, blas_agrees
from cohort.kernels.exact_product.kept_answers import KeptAnswers
from cohort.kernels.packed_linear.hopper.launch import exact_hopper_product, runs_hopper, wasted_share
from cohort.kernels.packed_linear.launch.support import num_multiprocessors

PRODUCT = AskedProduct(weight_shape=(64, 32), forward=False, dtype=torch.bfloat16, device=torch.device("cpu"))
FORWARD = replace(PRODUCT, forward=True)


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
    assert agreed_blas._ask(replace(PRODUCT, forward=forward), num_rows=4) is agrees


def test_each_product_is_asked_about_once_and_only_as_an_allocator_lays_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[tuple[int, ...], bool]] = []

    def ask(product: AskedProduct, *, num_rows: int) -> bool:
        asked.append(((num_rows, *product.weight_shape), product.forward))
        return product.forward

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


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> KeptAnswers:
    """Answers of a BLAS of which every size is asked; our tiles waste nothing of 1,024 rows."""
    found = KeptAnswers(None)
    monkeypatch.setattr(agreed_blas, "wasted_share", lambda num_rows, *_, **__: 0.0 if num_rows == 1024 else 1.0)
    monkeypatch.setattr(agreed_blas, "num_multiprocessors", lambda _: 132)
    monkeypatch.setattr(agreed_blas, "kept_answers", lambda _: found)
    return found


def test_a_pass_is_settled_where_nothing_is_asked_or_what_is_answered_is_loaded(answers: KeptAnswers) -> None:
    agreed = AgreedShapes()

    def settled(num_rows: int, *, trains: bool = True) -> bool:
        return is_settled(num_rows, agreed=agreed, trains=trains)

    assert is_settled(640, agreed=None, trains=True), "its products never ask"
    assert not settled(1024), "no product has been seen"
    agreed.products.add(PRODUCT)
    # one that our tiles fill, and sizes of which nothing is ever asked
    assert all(settled(num_rows) for num_rows in (1024, 4224, 2112))
    assert not settled(640), "nothing is known"
    answers.add(PRODUCT.name(640), agrees=False)
    assert settled(640), "ours computes it"
    answers.add(PRODUCT.name(768), agrees=True)
    assert not settled(768), "the kernel of the BLAS is still to be loaded"
    answers.loaded.add(PRODUCT.name(768))
    assert settled(768)
    # asked in this process
    agreed.answers[896, PRODUCT] = True
    assert settled(896)
    agreed.products.add(FORWARD)
    assert not settled(768), "of one product nothing is known"


def test_a_training_pass_is_not_settled_by_passes_that_measure(answers: KeptAnswers) -> None:
    agreed = AgreedShapes(products={FORWARD})
    answers.add(FORWARD.name(640), agrees=False)
    assert is_settled(640, agreed=agreed, trains=False)
    assert not is_settled(640, agreed=agreed, trains=True), "gradients of inputs have not been seen"
    agreed.products.add(PRODUCT)
    assert is_settled(640, agreed=agreed, trains=False), "an evaluation has none"
    assert not is_settled(640, agreed=agreed, trains=True)


def test_what_the_blas_computes_is_loaded_until_that_is_enough(
    answers: KeptAnswers, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched: list[tuple[tuple[int, ...], ...]] = []

    def launch(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, *, forward: bool) -> None:
        torch.mm(x, weight.t() if forward else weight, out=out)
        launched.append((tuple(x.shape), tuple(weight.shape), tuple(out.shape)))

    monkeypatch.setattr(agreed_blas, "blas_product", launch)
    answers.add(PRODUCT.name(256), agrees=True)
    answers.add(PRODUCT.name(384), agrees=False)
    answers.add(PRODUCT.name(640), agrees=True)
    load_agreed([PRODUCT], is_enough=lambda: len(launched) == 1)
    assert launched == [((640, 64), (64, 32), (640, 32))]
    assert answers.loaded == {PRODUCT.name(640)}
    load_agreed([PRODUCT])
    assert answers.loaded == {PRODUCT.name(256), PRODUCT.name(640)}
    answers.add(FORWARD.name(128), agrees=True)
    load_agreed([FORWARD])
    assert launched[-1] == ((128, 32), (64, 32), (128, 64))


def test_products_are_seen_at_sizes_that_come_again(answers: KeptAnswers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreed_blas, "_ask", lambda *_, **__: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    weight, agreed = torch.zeros(64, 32, dtype=torch.bfloat16), AgreedShapes()
    # a last layer, or a loss head, that leaves rows out
    blas_agrees(torch.zeros(144, 32, dtype=torch.bfloat16), weight, forward=True, agreed=agreed)
    assert not agreed.products
    blas_agrees(torch.zeros(4608, 64, dtype=torch.bfloat16), weight, forward=False, agreed=agreed)
    assert agreed.products == {PRODUCT}


def test_what_was_not_launched_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreed_blas, "exact_hopper_product", lambda *_, **__: None)
    assert agreed_blas._ask(FORWARD, num_rows=4) is None


@pytest.fixture
def no_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that is not there has none."""
    for name in ("device", "stream"):
        monkeypatch.setattr(torch.cuda, name, lambda _: nullcontext())
    monkeypatch.setattr(torch.cuda, "Stream", lambda *_, **__: None)
    monkeypatch.setattr(agreed_blas, "load_kernels_once", lambda: None)


@pytest.mark.usefixtures("no_stream")
def test_what_is_asked_ahead_settles_each_size(answers: KeptAnswers, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    launched: list[int] = []

    def ask(product: AskedProduct, *, num_rows: int) -> bool:
        asked.append(product.name(num_rows))
        return product.forward

    monkeypatch.setattr(agreed_blas, "_ask", ask)
    monkeypatch.setattr(agreed_blas, "blas_product", lambda x, *_, **__: launched.append(x.shape[0]))
    ask_ahead(AgreedShapes(), row_counts=[640], room=lambda: 1 << 30)
    assert not asked, "no product has been seen"
    agreed = AgreedShapes(products={PRODUCT, FORWARD})
    answers.add(PRODUCT.name(768), agrees=False)
    answers.add(FORWARD.name(768), agrees=True)
    sizes = [4608, 2112, 1024, 896, 768, 640]
    ask_ahead(agreed, row_counts=sizes, room=lambda: 1 << 30)
    assert asked == [product.name(rows) for rows in (896, 640) for product in (PRODUCT, FORWARD)]
    assert launched == [768], "what was answered by an earlier process is loaded"
    assert all(is_settled(rows, agreed=agreed, trains=True) for rows in sizes)
    ask_ahead(agreed, row_counts=sizes, room=lambda: 1 << 30)
    assert len(asked) == 4
    assert launched == [768]


@pytest.mark.usefixtures("no_stream")
def test_what_does_not_fit_or_comes_too_late_is_left_to_the_passes(
    answers: KeptAnswers, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(agreed_blas, "_ask", lambda _, *, num_rows: asked.append(num_rows))
    agreed = AgreedShapes(products={PRODUCT})
    # 64 x 32 weights, and of each row 64 of x, 32 of both products and a byte for each of their entries
    room = 2 * 64 * 32 + 640 * (2 * (64 + 2 * 32) + 32)
    ask_ahead(agreed, row_counts=[896, 640, 512], room=lambda: room)
    assert asked == [640, 512]
    assert not answers.loaded, "what was not launched says nothing"
    ask_ahead(agreed, row_counts=[640, 512], room=lambda: room, is_enough=lambda: len(asked) == 3)
    assert asked == [640, 512, 640]


@pytest.mark.usefixtures("no_stream", "answers")
def test_a_smaller_question_takes_what_a_larger_one_left(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(agreed_blas, "_ask", lambda _, *, num_rows: asked.append(num_rows))
    # what the first one took, the allocator keeps
    ask_ahead(AgreedShapes(products={PRODUCT}), row_counts=[640, 896, 512], room=lambda: 0 if asked else 200_000)
    assert asked == [640, 512]


@pytest.mark.usefixtures("no_stream", "answers")
def test_a_question_that_finds_no_memory_ends_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def ask(_: AskedProduct, *, num_rows: int) -> bool:
        asked.append(num_rows)
        if num_rows == 896:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return False

    monkeypatch.setattr(agreed_blas, "_ask", ask)
    ask_ahead(AgreedShapes(products={PRODUCT}), row_counts=[896, 640], room=lambda: 1 << 30)
    assert asked == [896, 640]


@pytest.mark.gpu
def test_what_is_asked_ahead_is_what_a_pass_would_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    if not runs_hopper(torch.device("cuda")):
        pytest.skip("not a Hopper")
    product = AskedProduct(
        weight_shape=(4096, 1024), forward=True, dtype=torch.bfloat16, device=torch.zeros(1, device="cuda").device
    )
    found, sizes = list[dict[str, bool]](), [4096, 1152, 256, 128]
    for is_ahead in (True, False):
        answers = KeptAnswers(None)
        monkeypatch.setattr(agreed_blas, "kept_answers", lambda device, answers=answers: answers)
        agreed = AgreedShapes(products={product, replace(product, forward=False)})
        if is_ahead:
            ask_ahead(agreed, row_counts=sizes, room=lambda: 1 << 30)
            assert all(is_settled(rows, agreed=agreed, trains=True) for rows in sizes)
        weight = torch.randn(*product.weight_shape, device="cuda").bfloat16()
        for rows in sizes:
            exact_product(torch.randn(rows, 1024, device="cuda").bfloat16(), weight, forward=True, agreed=agreed)
            exact_product(torch.randn(rows, 4096, device="cuda").bfloat16(), weight, forward=False, agreed=agreed)
        found.append(dict(answers._answers))
    assert found[0] == found[1]
    assert found[0]


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

    def counted(product: AskedProduct, *, num_rows: int) -> bool | None:
        asked.append(num_rows)
        return ask(product, num_rows=num_rows)

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
