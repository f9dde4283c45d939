"""The mask of the CPU, of tensors on any device, and of plain integers is one mask."""

from __future__ import annotations

import pytest
import torch

from cohort.kernels.dropout import dropout_rows, keep_mask, keep_threshold, kept_rows, row_keys
from cohort.kernels.dropout.reference import mix32


def mixed(x: int) -> int:
    """The 32-bit finaliser in Python's integers."""
    x ^= x >> 16
    x = x * 0x7FEB352D % 2**32
    x ^= x >> 15
    x = x * 0x846CA68B % 2**32
    return x ^ (x >> 16)


@pytest.mark.parametrize("first_feature", [0, 5])
@pytest.mark.parametrize("module_key", [0, 0x7FFFFFFF, 0xFFFFFFFF])
@pytest.mark.parametrize("probability", [0.0, 1e-9, 0.3, 1 - 1e-12])
def test_the_mask_is_that_of_plain_integers(module_key: int, probability: float, first_feature: int) -> None:
    keys_T = torch.tensor([0, 1, 2**31, 2**32 - 1])
    expected = [
        [
            mixed(mixed((key + module_key) % 2**32) ^ feature * 0x9E3779B9 % 2**32) >= keep_threshold(probability)
            for feature in range(first_feature, first_feature + 7)
        ]
        for key in keys_T.tolist()
    ]
    keep_TK = keep_mask(
        keys_T, module_key=module_key, num_features=7, probability=probability, first_feature=first_feature
    )
    assert keep_TK.tolist() == expected
    assert mix32(keys_T).tolist() == [mixed(key) for key in keys_T.tolist()]


def test_no_rows_have_no_mask() -> None:
    keys_T = torch.from_numpy(row_keys(0, trial_seed=1, step=2, sample_id=3))
    assert keep_mask(keys_T, module_key=5, num_features=4, probability=0.5).shape == (0, 4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_keep_their_dtype_and_the_mask_can_be_shared(dtype: torch.dtype) -> None:
    keys_T = torch.from_numpy(row_keys(9, trial_seed=1, step=2, sample_id=3))
    x_TK = torch.randn(9, 12, generator=torch.Generator().manual_seed(0)).to(dtype)
    dropped_TK = dropout_rows(x_TK, keys_T, module_key=5, probability=0.5)
    keep_TK = keep_mask(keys_T, module_key=5, num_features=12, probability=0.5)
    assert dropped_TK.dtype == dtype
    assert torch.equal(dropped_TK, kept_rows(x_TK, keep_TK, probability=0.5))
    assert torch.equal(dropped_TK != 0, keep_TK)
