"""The dropout mask inside Triton kernels, bit for bit the one of :mod:`cohort.kernels.dropout.reference`.

The generator is a hash of (row key, module key, feature), so a kernel recomputes any tile's mask from 4 bytes a row and
stores none.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
# a jitted function has no Python types: its operands are pointers and tiles

from __future__ import annotations

import triton
import triton.language as tl

from cohort.kernels.dropout.reference import keep_threshold

__all__ = ["as_signed32", "keep_tile", "mix32", "threshold_bits"]


# Numbers are written out in functions that kernels share, and are no constants of the module: Triton up to 3.6 names a
# kernel in its cache by the constants of a shared function only if it has named that function before, so by whatever
# else was launched.


@triton.jit
def mix32(x):
    """Scramble uint32 values; bijective."""
    x = x ^ (x >> 16)
    x = x * 0x7FEB352D
    x = x ^ (x >> 15)
    x = x * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def keep_tile(row_keys, features, module_key, threshold):
    """Return the kept features [rows, features] as int1.

    ``row_keys`` are the low 32 bits of the reference's keys; ``module_key`` and ``threshold`` come as int32 bits (see
    :func:`as_signed32`), so that one compiled kernel serves all modules.
    """
    keyed = mix32(row_keys.to(tl.uint32) + module_key.to(tl.uint32))
    return mix32(keyed[:, None] ^ (features.to(tl.uint32) * 0x9E3779B9)[None, :]) >= threshold.to(tl.uint32)


def as_signed32(value: int) -> int:
    """Return the int32 with the bits of the uint32 ``value``."""
    return value - (1 << 32) if value >= 1 << 31 else value


def threshold_bits(probability: float) -> int:
    """Return :func:`~cohort.kernels.dropout.reference.keep_threshold` as int32 bits."""
    return as_signed32(min(keep_threshold(probability), (1 << 32) - 1))
