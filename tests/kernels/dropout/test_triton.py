"""The mask inside Triton kernels is the reference's, bit for bit."""

# mypy: allow-untyped-defs, allow-incomplete-defs
# a jitted function has no Python types: its operands are pointers and tiles

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

import triton
import triton.language as tl

from cohort.kernels.dropout import dropout_rows, keep_mask
from cohort.kernels.dropout.triton import as_signed32, keep_tile, threshold_bits


@triton.jit(do_not_specialize=["module_key", "threshold"])
def _mask_kernel(row_keys, out, module_key, threshold, num_rows, num_features, BT: tl.constexpr, BK: tl.constexpr):
    rows = tl.program_id(0) * BT + tl.arange(0, BT)
    features = tl.program_id(1) * BK + tl.arange(0, BK)
    keys = tl.load(row_keys + rows, mask=rows < num_rows, other=0)
    keep = keep_tile(keys, features, module_key, threshold)
    ok = (rows < num_rows)[:, None] & (features < num_features)[None, :]
    tl.store(out + rows[:, None] * num_features + features[None, :], keep.to(tl.int8), mask=ok)


@pytest.mark.parametrize("probability", [0.0, 1e-9, 0.05, 0.5, 0.999])
@pytest.mark.parametrize("module_key", [0, 7, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF])
def test_the_mask_is_the_references_mask(triton_device: str, probability: float, module_key: int) -> None:
    generator = torch.Generator().manual_seed(module_key % 1000)
    row_keys = torch.randint(0, 2**32, (37,), generator=generator)
    row_keys[:3] = torch.tensor([0, 2**31, 2**32 - 1])
    row_keys = row_keys.to(triton_device)
    out = torch.full((37, 75), -1, dtype=torch.int8, device=triton_device)
    grid = (triton.cdiv(37, 16), triton.cdiv(75, 32))
    _mask_kernel[grid](row_keys, out, as_signed32(module_key), threshold_bits(probability), 37, 75, BT=16, BK=32)
    expected = keep_mask(row_keys, module_key=module_key, num_features=75, probability=probability)
    assert torch.equal(out, expected.to(torch.int8))


def test_a_dropped_nan_is_zero_and_the_kept_share_is_right() -> None:
    row_keys = torch.arange(2000)
    x = torch.full((2000, 50), torch.nan)
    dropped = dropout_rows(x, row_keys, module_key=3, probability=0.3)
    kept = dropped.isnan()
    assert bool((dropped[~kept] == 0).all())
    # 100,000 draws: standard deviation 0.00145, so five of them
    assert abs(float(kept.float().mean()) - 0.7) < 0.0073
