"""The autograd node of a packed linear: where its graph begins."""

from __future__ import annotations

import torch

from cohort.kernels.packed_linear import packed_linear
from cohort.models.weight_formats.kinds.plain import FrozenLinear
from tests.kernels.packed_linear.cases import Case, make_case, sink_of


def _case() -> Case:
    return make_case("cpu", lengths=[33, 0, 40], ranks=[4, 8, 5], widths=(24, 8))


def _passed(case: Case, *, requires_grad: bool) -> torch.Tensor:
    x = case.x.clone().requires_grad_(requires_grad)
    y = packed_linear(x, frozen=FrozenLinear(case.weight), parts=case.parts, slots=case.slots, segments=case.segments)
    y.backward(case.dy)
    assert (x.grad is not None) == requires_grad
    return y.detach()


def test_sinks_get_the_same_bits_where_the_stream_requires_no_gradient() -> None:
    with_dx, without = _case(), _case()
    assert torch.equal(_passed(with_dx, requires_grad=True), _passed(without, requires_grad=False))
    for mine, theirs in zip(with_dx.parts, without.parts, strict=True):
        assert torch.equal(sink_of(mine.grad_a_RK), sink_of(theirs.grad_a_RK))
        assert torch.equal(sink_of(mine.grad_b_RN), sink_of(theirs.grad_b_RN))
        assert sink_of(mine.grad_b_RN).any()


def test_nothing_begins_without_gradients() -> None:
    case = _case()
    with torch.no_grad():
        y = packed_linear(
            case.x, frozen=FrozenLinear(case.weight), parts=case.parts, slots=case.slots, segments=case.segments
        )
    assert not y.requires_grad
    assert torch.equal(y, _passed(_case(), requires_grad=True))
