from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cohort.core.errors import ShapeError
from cohort.kernels.backend import Backend
from cohort.kernels.rope import apply_rope, split_and_rotate
from tests.kernels.closeness import assert_near, low_precision

# tokens, query heads, key-value heads, head width
SHAPES = [(1, 1, 1, 2), (5, 4, 2, 16), (3, 9, 3, 64), (2, 14, 2, 24), (7, 3, 1, 6), (0, 4, 2, 8)]


def _exact(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos.double()[:, None] + torch.cat((-second, first), dim=-1) * sin.double()[:, None]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("low", [False, True], ids=["float32", "low"])
def test_triton_forward_and_gradients(triton_device: str, shape: tuple[int, int, int, int], low: bool) -> None:
    dtype = low_precision(triton_device) if low else torch.float32
    num_tokens, num_heads, num_kv_heads, width = shape
    # unequal halves as well: the backward is the exact transpose for any angles
    cos, sin = (torch.randn(num_tokens, width, device=triton_device) for _ in range(2))
    fused = torch.randn(num_tokens, num_heads + num_kv_heads, width, dtype=dtype, device=triton_device)
    q, k = (x.detach().requires_grad_() for x in fused.split([num_heads, num_kv_heads], dim=1))  # strided views
    found = apply_rope(q, k, cos_TE=cos, sin_TE=sin, backend=Backend.TRITON)
    upstream = [torch.randn(x.shape, dtype=dtype, device=triton_device) for x in (q, k)]
    gradients = torch.autograd.grad(found, (q, k), upstream)
    for x, y, dy, dx in zip((q, k), found, upstream, gradients, strict=True):
        exact_x = x.detach().double().requires_grad_()
        exact_y = _exact(exact_x, cos, sin)
        assert_near(y, exact_y)
        assert_near(dx, torch.autograd.grad(exact_y, exact_x, dy.double())[0])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("on_triton", [False, True], ids=["torch", "triton"])
def test_of_a_fused_product_is_splitting_then_rotating(
    triton_device: str, shape: tuple[int, int, int, int], on_triton: bool
) -> None:
    backend, device = (Backend.TRITON, triton_device) if on_triton else (Backend.REFERENCE, "cpu")
    dtype = low_precision(device)
    num_tokens, num_heads, num_kv_heads, width = shape
    parts = (num_heads, num_kv_heads, num_kv_heads)
    cos, sin = (torch.randn(num_tokens, width, device=device) for _ in range(2))
    qkv = torch.randn(num_tokens, sum(parts) * width, dtype=dtype, device=device, requires_grad=True)
    upstream = [torch.randn(num_tokens, count, width, dtype=dtype, device=device) for count in parts]
    # values' gradients come strided from some attention
    upstream[2] = torch.randn(num_tokens, num_kv_heads + 1, width, dtype=dtype, device=device)[:, 1:]
    q, k, v = qkv.unflatten(1, (-1, width)).split(parts, dim=1)
    expected = (*apply_rope(q, k, cos_TE=cos, sin_TE=sin, backend=backend), v)
    found = split_and_rotate(qkv, heads=parts[:2], cos_TE=cos, sin_TE=sin, backend=backend)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    (theirs,) = torch.autograd.grad(expected, qkv, upstream)
    (mine,) = torch.autograd.grad(found, qkv, upstream)
    assert mine.is_contiguous()
    # other strides may be compiled to another order of the two products
    assert_near(mine, theirs)
    assert torch.equal(mine[:, -num_kv_heads * width :], upstream[2].flatten(1))


def test_wrong_shapes_are_refused() -> None:
    q, k, angles = torch.randn(4, 2, 8), torch.randn(4, 1, 8), torch.randn(4, 8)
    with pytest.raises(ShapeError, match="must be"):
        apply_rope(q, k[:3], cos_TE=angles, sin_TE=angles)
    with pytest.raises(ShapeError, match="must be"):
        apply_rope(q, k, cos_TE=angles[:, :4], sin_TE=angles)
    with pytest.raises(ShapeError, match=r"fused product \(4, 40\) of 2 \+ 2 x 1 heads"):
        split_and_rotate(torch.randn(4, 40), heads=(2, 1), cos_TE=angles, sin_TE=angles)


def test_without_gradients_the_bits_are_the_same() -> None:
    qkv, cos, sin = torch.randn(5, 96), torch.randn(5, 16), torch.randn(5, 16)
    q, k = qkv.unflatten(1, (6, 16)).split((4, 2), dim=1)
    trained = (
        *split_and_rotate(qkv.clone().requires_grad_(), heads=(2, 2), cos_TE=cos, sin_TE=sin),
        *apply_rope(q.clone().requires_grad_(), k.clone().requires_grad_(), cos_TE=cos, sin_TE=sin),
    )
    with torch.no_grad():
        found = (
            *split_and_rotate(qkv, heads=(2, 2), cos_TE=cos, sin_TE=sin),
            *apply_rope(q, k, cos_TE=cos, sin_TE=sin),
        )
    assert all(torch.equal(a, b) for a, b in zip(found, trained, strict=True))
