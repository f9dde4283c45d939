"""Packed attention against its definition: forward and every gradient, ragged, grouped, windowed, poisoned."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cohort.core.errors import ShapeError
from cohort.kernels.attention import AttentionTiles, RecordedTiles, packed_attention
from cohort.kernels.attention.reference import packed_attention_reference

CASES = [
    # lengths, query heads, key-value heads, head width, window, filler rows
    ((5,), 2, 1, 16, None, 0),
    ((1, 7, 0, 3), 2, 2, 8, None, 3),
    ((70, 2), 4, 2, 24, None, 5),
    ((66, 9), 2, 1, 16, 5, 0),
    ((40, 1, 30), 1, 1, 32, 33, 1),
]
LONG_CASES = [((200, 513, 1, 130), 8, 2, 128, None, 13), ((300, 77), 4, 4, 64, None, 0), ((400,), 4, 1, 80, 100, 7)]


def draw(
    lengths: tuple[int, ...], heads: int, kv_heads: int, width: int, filler: int, *, device: str, dtype: torch.dtype
) -> tuple[list[Tensor], tuple[int, ...]]:
    """q, k, v as slices of one fused projection, and do; with the sequence offsets."""
    offsets = [0]
    for length in lengths:
        offsets.append(offsets[-1] + length)
    rows = offsets[-1] + filler
    fused = torch.randn(rows, (heads + 2 * kv_heads) * width, dtype=torch.float32).to(dtype).to(device)
    q, k, v = fused.split((heads * width, kv_heads * width, kv_heads * width), dim=1)
    do = torch.randn(rows, heads, width, dtype=torch.float32).to(dtype).to(device)
    return [q.unflatten(1, (heads, width)), *(x.unflatten(1, (kv_heads, width)) for x in (k, v)), do], tuple(offsets)


def run(tensors: list[Tensor], tiles: AttentionTiles, window: int | None) -> list[Tensor]:
    leaves = [x.detach().requires_grad_() for x in tensors[:3]]
    o = packed_attention(*leaves, tiles=tiles, window=window)
    o.backward(tensors[3])
    return [o.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]


def expected_of(tensors: list[Tensor], offsets: tuple[int, ...], window: int | None) -> list[Tensor]:
    leaves = [x.detach().double().requires_grad_() for x in tensors[:3]]
    o = packed_attention_reference(*leaves, sequence_offsets=offsets, window=window)
    o.backward(tensors[3].double())
    return [o.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]


def check(case: tuple[tuple[int, ...], int, int, int, int | None, int], *, device: str, dtype: torch.dtype) -> None:
    lengths, heads, kv_heads, width, window, filler = case
    tensors, offsets = draw(lengths, heads, kv_heads, width, filler, device=device, dtype=dtype)
    found = run(tensors, AttentionTiles(offsets, device=device), window)
    expected = expected_of(tensors, offsets, window)
    # float32: rounding of sums; 16 bits: operands and weights are rounded to 8 or 11 bits before each product
    tolerance = {torch.float32: 1e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}[dtype]
    for name, ours, theirs in zip(("o", "dq", "dk", "dv"), found, expected, strict=True):
        error = (ours.double() - theirs).norm() / theirs.norm().clamp_min(1e-12)
        assert float(error) < tolerance, name
        assert not ours[offsets[-1] :].any(), name


@pytest.mark.parametrize("case", CASES, ids=str)
def test_values_and_gradients(case: tuple[tuple[int, ...], int, int, int, int | None, int], triton_device: str) -> None:
    torch.manual_seed(0)
    check(case, device=triton_device, dtype=torch.float32)


@pytest.mark.gpu
@pytest.mark.parametrize("case", LONG_CASES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_long_sequences_on_the_gpu(
    case: tuple[tuple[int, ...], int, int, int, int | None, int], dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    check(case, device="cuda", dtype=dtype)


def test_a_sequence_has_the_same_bits_in_any_stream(triton_device: str) -> None:
    torch.manual_seed(1)
    tensors, offsets = draw((3, 20, 9), 2, 1, 16, 4, device=triton_device, dtype=torch.float32)
    together = run(tensors, AttentionTiles(offsets, device=triton_device), None)
    alone = run([x[3:23] for x in tensors], AttentionTiles((0, 20), device=triton_device), None)
    for ours, theirs in zip(together, alone, strict=True):
        assert torch.equal(ours[3:23], theirs)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_recorded_tiles_give_each_sequence_the_same_bits(
    case: tuple[tuple[int, ...], int, int, int, int | None, int], triton_device: str
) -> None:
    torch.manual_seed(3)
    lengths, heads, kv_heads, width, window, filler = case
    tensors, offsets = draw(lengths, heads, kv_heads, width, filler, device=triton_device, dtype=torch.float32)
    num_rows = offsets[-1] + filler
    capacity = RecordedTiles.capacity(num_rows=num_rows, num_sequences=len(lengths) + 3)
    entries = RecordedTiles.entries(offsets, num_rows=num_rows, capacity=capacity)
    recorded = RecordedTiles(torch.from_numpy(entries).to(triton_device), num_rows=num_rows)
    expected = run(tensors, AttentionTiles(offsets, device=triton_device), window)
    for ours, theirs in zip(run(tensors, recorded, window), expected, strict=True):
        assert torch.equal(ours[: offsets[-1]], theirs[: offsets[-1]])
        assert ours.isfinite().all()


def test_sequences_that_need_more_tiles_than_were_recorded_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"3 sequences that end at row 9 need 4 tiles; there are 3 for 12 rows"):
        RecordedTiles.entries((0, 1, 5, 9), num_rows=12, capacity=3)


def test_a_poisoned_sequence_stays_alone(triton_device: str) -> None:
    torch.manual_seed(2)
    tensors, offsets = draw((6, 11, 5), 2, 1, 16, 0, device=triton_device, dtype=torch.float32)
    tiles = AttentionTiles(offsets, device=triton_device)
    clean = run(tensors, tiles, None)
    poisoned = [x.clone() for x in tensors]
    for x in poisoned:
        x[6:17] = float("nan")
    found = run(poisoned, tiles, None)
    for ours, theirs in zip(found, clean, strict=True):
        assert torch.equal(ours[:6], theirs[:6])
        assert torch.equal(ours[17:], theirs[17:])
    assert found[0][6:17].isnan().all()


def test_shapes_that_do_not_fit_are_named(triton_device: str) -> None:
    tensors, offsets = draw((4,), 3, 2, 8, 0, device=triton_device, dtype=torch.float32)
    with pytest.raises(ShapeError, match="3 query heads cannot share 2"):
        packed_attention(*tensors[:3], tiles=AttentionTiles(offsets, device=triton_device))
    with pytest.raises(ShapeError, match="end at row 9 but the stream has 4"):
        packed_attention(tensors[0][:, :2], *tensors[1:3], tiles=AttentionTiles((0, 9), device=triton_device))
