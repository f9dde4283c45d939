"""Codes of a gradient are handed from the kernel that makes it to the product behind it, or left behind."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from cohort.kernels.backend import Backend
from cohort.kernels.fp8_product import Fp8Rows, HandedGradient, quantise_rows
from cohort.kernels.packed_linear import packed_linear
from cohort.kernels.packed_mlp import packed_mlp
from cohort.kernels.rms_norm import add_rms_norm
from cohort.kernels.rope import split_and_rotate
from cohort.models.weight_formats.kinds.plain import FrozenLinear
from tests.kernels.closeness import assert_near, low_precision
from tests.kernels.packed_linear import cases as linear_cases
from tests.kernels.packed_mlp import cases as mlp_cases


class Coded(FrozenLinear):
    """A plain product that asks for the codes of its gradient and keeps what it got."""

    can_accumulate = False
    plain_weight_NK = None
    asks = True

    def gradient_factors(self, like: Tensor) -> Tensor | None:
        return torch.linspace(0.5, 2.0, self.out_features, device=like.device) if self.asks else None

    def grad_input(self, dy_TN: Tensor, codes: Fp8Rows | None = None) -> Tensor:
        self.gradient, self.codes = dy_TN, codes
        return super().grad_input(dy_TN)

    def assert_codes(self) -> None:
        assert self.codes is not None
        # by the same backend: Triton's interpreter rounds to e4m3 wrongly
        expected = quantise_rows(self.gradient, factors_K=self.gradient_factors(self.gradient), backend=Backend.TRITON)
        assert torch.equal(self.codes.scales_T, expected.scales_T)
        assert torch.equal(self.codes.codes_TK.view(torch.uint8), expected.codes_TK.view(torch.uint8))


def linear(device: str, *, widths: tuple[int, ...], asks: bool) -> tuple[Tensor, Tensor, Coded]:
    case = linear_cases.make_case(
        device, lengths=[3, 0, 2], ranks=[8, 4, 3], extra=1, widths=widths, in_features=24, dtype=low_precision(device)
    )
    frozen = Coded(case.weight)
    frozen.asks = asks
    x = case.x.requires_grad_()
    y = packed_linear(
        x, frozen=frozen, parts=case.parts, slots=case.slots, segments=case.segments, tables=case.tables(),
        backend=Backend.TRITON,
    )  # fmt: skip
    return x, y, frozen


@pytest.mark.parametrize("adds_up", [False, True], ids=["norm alone", "norm and stream"])
def test_the_norm_behind_a_linear_hands_the_codes_of_its_gradient(triton_device: str, adds_up: bool) -> None:
    gradients = []
    for asks in (True, False):
        x, y, frozen = linear(triton_device, widths=(40,), asks=asks)
        residual = torch.linspace(-1, 1, y.numel(), device=y.device).to(y.dtype).view_as(y).requires_grad_()
        weight = torch.linspace(0.1, 1, 40, device=y.device).to(y.dtype)
        normed, stream = add_rms_norm(y, residual_TD=residual, weight_D=weight, eps=1e-5, backend=Backend.TRITON)
        (normed.float().pow(3).sum() + (stream.float().pow(2).sum() if adds_up else 0.0)).backward()
        assert x.grad is not None
        assert residual.grad is not None
        gradients.append((x.grad, residual.grad, frozen.gradient))
        if asks:
            frozen.assert_codes()
        else:
            assert frozen.codes is None
    # the codes are of the gradient as it was stored; a kernel that writes them, too, may sum a row in another order
    for found, expected in zip(*gradients, strict=True):
        assert_near(found, expected)


def test_the_rotation_behind_q_k_and_v_hands_theirs(triton_device: str) -> None:
    gradients = []
    for asks in (True, False):
        # three heads of queries and one of keys and values, 6 wide
        x, y, frozen = linear(triton_device, widths=(18, 6, 6), asks=asks)
        angles = torch.linspace(0, 3, y.shape[0] * 6, device=y.device).view(-1, 6)
        parts = split_and_rotate(
            y, heads=(3, 1), cos_TE=angles.cos(), sin_TE=angles.sin(), backend=Backend.TRITON
        )  # fmt: skip
        sum(part.float().pow(2).sum() for part in parts).backward()  # type: ignore[union-attr]
        assert x.grad is not None
        gradients.append((x.grad, frozen.gradient))
        if asks:
            frozen.assert_codes()
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


def test_the_norm_behind_a_feed_forward_block_hands_those_of_down(triton_device: str) -> None:
    case = mlp_cases.make_case(triton_device, lengths=[5, 3], ranks=[8, 3], extra=1, dtype=low_precision(triton_device))
    down = Coded(case.down)
    y = packed_mlp(
        case.x.requires_grad_(), gate_up=FrozenLinear(case.gate_up), gate_up_parts=case.parts[:2], down=down,
        down_parts=case.parts[2:], slots=case.slots, segments=case.segments, tables=case.tables(),
        backend=Backend.TRITON,
    )  # fmt: skip
    weight = torch.ones(24, dtype=y.dtype, device=y.device)
    normed, _ = add_rms_norm(
        y, residual_TD=torch.zeros_like(y), weight_D=weight, eps=1e-5, backend=Backend.TRITON
    )  # fmt: skip
    normed.float().pow(3).sum().backward()
    down.assert_codes()


def test_the_activation_behind_gate_and_up_hands_theirs(triton_device: str) -> None:
    case = mlp_cases.make_case(triton_device, lengths=[5, 3], ranks=[8, 3], extra=1, dtype=low_precision(triton_device))
    gate_up = Coded(case.gate_up)
    y = packed_mlp(
        case.x.requires_grad_(), gate_up=gate_up, gate_up_parts=case.parts[:2], down=FrozenLinear(case.down),
        down_parts=case.parts[2:], slots=case.slots, segments=case.segments, tables=case.tables(), fused=False,
        backend=Backend.TRITON,
    )  # fmt: skip
    y.float().pow(2).sum().backward()
    gate_up.assert_codes()


def test_what_lies_between_leaves_the_codes_behind(triton_device: str) -> None:
    _, y, frozen = linear(triton_device, widths=(40,), asks=True)
    weight = torch.ones(40, dtype=y.dtype, device=y.device)
    options: dict[str, Any] = {"weight_D": weight, "eps": 1e-5, "backend": Backend.TRITON}
    normed, _ = add_rms_norm(2 * y, residual_TD=torch.zeros_like(y), **options)
    normed.sum().backward()
    assert frozen.codes is None
    # a second use of the product adds to the gradient that has codes
    _, y, frozen = linear(triton_device, widths=(40,), asks=True)
    normed, _ = add_rms_norm(y, residual_TD=torch.zeros_like(y), **options)
    (normed.float().pow(2).sum() + y.float().sum()).backward()
    assert frozen.codes is None


def test_codes_are_of_one_gradient_as_it_was() -> None:
    handed = HandedGradient(lambda _: torch.ones(8))
    gradient = torch.randn(3, 8)
    room = handed.room(gradient, width=8)
    assert room is not None
    assert handed.room(gradient, width=9) is None
    assert handed.take(gradient) is None
    handed.hand(gradient, room)
    assert handed.take(gradient) is room.rows
    assert handed.take(gradient) is None
    for other in (gradient.clone(), gradient[:2]):
        handed.hand(gradient, room)
        assert handed.take(other) is None
    handed.hand(gradient, room)
    gradient.add_(1)
    assert handed.take(gradient) is None
