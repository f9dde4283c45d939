"""Counter-based dropout masks (algorithms: key = trial seed, step, sample, position, module, feature).

A 32-bit hash stands for the generator. Every stage is ``mix32``, a bijective integer finaliser with two multiplications
(Ellis, "lowbias32"), which Triton computes bit for bit alike on uint32. Tensors hold the values in int64 and mask each
stage to 32 bits, because torch has no complete uint32 arithmetic; NumPy, which has it, computes the masks of the CPU.

Shapes:  T rows · K input features
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cohort.core.seeds import derive_seed

__all__ = ["dropout_rows", "keep_mask", "keep_threshold", "kept_rows", "mix32", "module_key", "row_keys"]

_MASK = 0xFFFFFFFF
_GOLDEN = 0x9E3779B9
_MULTIPLIER_1 = 0x7FEB352D
_MULTIPLIER_2 = 0x846CA68B


def mix32(x: Tensor) -> Tensor:
    """Scramble 32-bit integers held in int64; bijective on [0, 2**32)."""
    x = x ^ (x >> 16)
    x = (x * _MULTIPLIER_1) & _MASK
    x = x ^ (x >> 15)
    x = (x * _MULTIPLIER_2) & _MASK
    return x ^ (x >> 16)


def _mix32_in_place(x: NDArray[np.uint32]) -> NDArray[np.uint32]:
    x ^= x >> np.uint32(16)
    x *= np.uint32(_MULTIPLIER_1)
    x ^= x >> np.uint32(15)
    x *= np.uint32(_MULTIPLIER_2)
    x ^= x >> np.uint32(16)
    return x


def module_key(name: str) -> int:
    """Return the 32-bit key of a module path, equal on every machine."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=4).digest(), "little")


def row_keys(length: int, *, trial_seed: int, step: int, sample_id: int) -> NDArray[np.int64]:
    """Return the 32-bit keys of a sample's rows, int64 [length], for one optimizer step of one trial."""
    sample_key = derive_seed(trial_seed, "lora_dropout", step, sample_id) & _MASK
    positions = (np.arange(length, dtype=np.int64) * _GOLDEN + sample_key) & _MASK
    mixed: NDArray[np.int64] = mix32(torch.from_numpy(positions)).numpy()
    return mixed


def keep_threshold(probability: float) -> int:
    """Return the 32-bit value at or above which a feature is kept."""
    return round(probability * 2**32)


def keep_mask(
    row_keys_T: Tensor, *, module_key: int, num_features: int, probability: float, first_feature: int = 0
) -> Tensor:
    """Return the boolean mask [T, K] of kept features.

    Args:
        row_keys_T: int64 [T] from :func:`row_keys`.
        module_key: Key of the module, so that siblings q, k and v drop different features, as in PEFT.
        num_features: K.
        probability: Chance to drop one feature, in [0, 1).
        first_feature: Number of the first of them, where they are a part of the module's features.
    """
    if row_keys_T.device.type == "cpu":
        keys_T = row_keys_T.numpy().astype(np.uint32) + np.uint32(module_key)
        numbers_K = np.arange(first_feature, first_feature + num_features, dtype=np.uint32) * np.uint32(_GOLDEN)
        mixed_TK = _mix32_in_place(_mix32_in_place(keys_T)[:, None] ^ numbers_K)
        return torch.from_numpy(mixed_TK >= keep_threshold(probability))
    keyed_T = mix32((row_keys_T + module_key) & _MASK)
    features_K = torch.arange(first_feature, first_feature + num_features, device=row_keys_T.device, dtype=torch.int64)
    features_K = (features_K * _GOLDEN) & _MASK
    return mix32(keyed_T[:, None] ^ features_K[None, :]) >= keep_threshold(probability)


def dropout_rows(
    x_TK: Tensor, row_keys_T: Tensor, *, module_key: int, probability: float, first_feature: int = 0
) -> Tensor:
    """Return ``x`` with dropped features zeroed and kept ones scaled by ``1 / (1 - probability)``.

    A dropped feature is zero even where ``x`` is NaN or Inf. The function is its own gradient: apply it to the gradient
    of its output with the same keys.
    """
    if probability == 0.0:
        return x_TK
    keep_TK = keep_mask(
        row_keys_T,
        module_key=module_key,
        num_features=x_TK.shape[1],
        probability=probability,
        first_feature=first_feature,
    )
    return kept_rows(x_TK, keep_TK, probability=probability)


def kept_rows(x_TK: Tensor, keep_TK: Tensor, *, probability: float) -> Tensor:
    """Return what :func:`dropout_rows` returns, given the mask [T, K] of kept features."""
    return torch.where(keep_TK, x_TK * (1.0 / (1.0 - probability)), 0.0)
