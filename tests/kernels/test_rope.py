from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from cohort.core.errors import ShapeError
from cohort.kernels.backend import Backend
from cohort.kernels.rope import apply_rope, split_rope
from tests.kernels.closeness import assert_near, low_precision

# tokens, query heads, key-value heads, head width
SHAPES = [(1, 1, 1, 2), (5, 4, 2, 16), (3, 9, 3, 64), (2, 14, 2, 24), (7, 3, 1, 6), (0, 4, 2, 8)]


def _angles(num_tokens: int, width: int, dtype: torch.dtype, device: str = "cpu") -> tuple[Tensor, Tensor]:
    half = torch.randn(num_tokens, width // 2, device=device) * 3
    angles = torch.cat((half, half), dim=-1)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def _exact(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos.double()[:, None] + torch.cat((-second, first), dim=-1) * sin.double()[:, None]


def _assert_same(found: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    """Bit-equal on the CPU; on a GPU two compilations may contract different products into an fma."""
    for a, b in zip(found, expected, strict=True):
        if a.is_cuda:
            assert_near(a, b)
        else:
            assert torch.equal(a, b)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_is_bit_equal_to_transformers(dtype: torch.dtype) -> None:
    q, k = (
        torch.randn(20, 4, 16, dtype=dtype, requires_grad=True),
        torch.randn(20, 2, 16, dtype=dtype, requires_grad=True),
    )
    cos, sin = _angles(20, 16, dtype)
    found = apply_rope(q, k, cos_TE=cos, sin_TE=sin)
    rotated = apply_rotary_pos_emb(q.transpose(0, 1)[None], k.transpose(0, 1)[None], cos[None], sin[None])
    expected = [x[0].transpose(0, 1) for x in rotated]
    upstream = [torch.randn_like(x) for x in expected]
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    gradients = (torch.autograd.grad(outputs, (q, k), upstream) for outputs in (found, expected))
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


@pytest.mark.parametrize("backend", Backend)
@pytest.mark.parametrize("shape", SHAPES)
def test_splitting_is_slicing_then_rotating(
    triton_device: str, shape: tuple[int, int, int, int], backend: Backend
) -> None:
    num_tokens, num_heads, num_kv_heads, width = shape
    fused = torch.randn(num_tokens, (num_heads + 2 * num_kv_heads) * width, device=triton_device, requires_grad=True)
    cos, sin = _angles(num_tokens, width, torch.float32, triton_device)
    found = split_rope(fused, num_heads=num_heads, num_kv_heads=num_kv_heads, cos_TE=cos, sin_TE=sin, backend=backend)
    heads = fused.unflatten(1, (-1, width)) if num_tokens else fused.view(0, num_heads + 2 * num_kv_heads, width)
    q, k, v = heads.split([num_heads, num_kv_heads, num_kv_heads], dim=1)
    expected = (*apply_rope(q, k, cos_TE=cos, sin_TE=sin, backend=backend), v)
    upstream = [torch.randn_like(x) for x in expected]
    assert all(x.is_contiguous() for x in found)
    _assert_same(found, expected)
    _assert_same(*(torch.autograd.grad(outputs, fused, upstream) for outputs in (found, expected)))


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


@pytest.mark.parametrize("backend", Backend)
def test_splitting_lays_rows_out_for_padded_attention(triton_device: str, backend: Backend) -> None:
    fused = torch.randn(7, 5 * 8, device=triton_device, requires_grad=True)
    cos, sin = _angles(7, 8, torch.float32, triton_device)
    # sequences of rows 0:3 and 3:5, padded to 4 rows each with their first; rows 5 and 6 belong to none
    rows = torch.tensor([0, 1, 2, 0, 3, 4, 3, 3], device=triton_device)
    places = torch.tensor([0, 1, 2, 4, 5, -1, -1], device=triton_device)
    found = split_rope(
        fused, num_heads=3, num_kv_heads=1, cos_TE=cos, sin_TE=sin, rows_P=rows, places_T=places, backend=backend
    )
    plain = split_rope(fused, num_heads=3, num_kv_heads=1, cos_TE=cos, sin_TE=sin, backend=backend)
    _assert_same(found, [x[rows] for x in plain])
    upstream = [torch.randn_like(x) for x in found]
    for gradient in upstream:
        gradient[[3, 6, 7]] = 0  # what causal attention gives its padding
    mine = torch.autograd.grad(found, fused, upstream)
    _assert_same(mine, torch.autograd.grad([x[rows] for x in plain], fused, upstream))
    assert not mine[0][5:].any()


def test_wrong_shapes_are_refused() -> None:
    q, k, angles = torch.randn(4, 2, 8), torch.randn(4, 1, 8), torch.randn(4, 8)
    with pytest.raises(ShapeError, match="must be"):
        apply_rope(q, k[:3], cos_TE=angles, sin_TE=angles)
    with pytest.raises(ShapeError, match="must be"):
        apply_rope(q, k, cos_TE=angles[:, :4], sin_TE=angles)
    with pytest.raises(ShapeError, match="heads of one even width"):
        split_rope(torch.randn(4, 33), num_heads=2, num_kv_heads=1, cos_TE=angles, sin_TE=angles)
    with pytest.raises(ShapeError, match="must be"):
        split_rope(torch.randn(4, 32), num_heads=2, num_kv_heads=1, cos_TE=angles[:2], sin_TE=angles)
    with pytest.raises(ShapeError, match="come together"):
        split_rope(
            torch.randn(4, 32), num_heads=2, num_kv_heads=1, cos_TE=angles, sin_TE=angles, rows_P=torch.arange(4)
        )
