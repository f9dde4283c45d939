"""Draws and logarithms on the GPU: a program for each row reads its logits two or three times, and writes one number.

In float64, as the plain code: 1,024 rows of 128,000 logits are read at the rate of memory either way. Blocks of the
vocabulary are summed one after the other, so that a row has its bits wherever it stands.

Shapes:  B rows of logits · C rows that are asked for · V vocabulary
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
# a jitted function has no Python types: its operands are pointers and tiles

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from cohort.kernels.backend import on_device_of

__all__ = ["draw_tokens", "picked_logprobs"]

BLOCK, WARPS = 2048, 8
# what takes the place of a number that is not there: the row is refused, and must end somewhere
LEAST = -3.0e38


@triton.jit
def _block(logits_row, start, vocab_size, LOWEST: tl.constexpr, SIZE: tl.constexpr):
    """Return a block of a row's logits in float64; what is no number, or outside, is the lowest there is."""
    columns = start + tl.arange(0, SIZE)
    inside = columns < vocab_size
    logits = tl.load(logits_row + columns, mask=inside, other=0.0).to(tl.float64)
    return tl.minimum(tl.where(inside & (logits >= LOWEST), logits, LOWEST), -LOWEST)


@triton.jit
def _largest(logits_row, vocab_size, LOWEST: tl.constexpr, SIZE: tl.constexpr):
    largest = tl.full([SIZE], LOWEST, dtype=tl.float64)
    for start in range(0, vocab_size, SIZE):
        largest = tl.maximum(largest, _block(logits_row, start, vocab_size, LOWEST, SIZE))
    return tl.max(largest, axis=0)


@triton.jit
def _weights(logits_row, start, largest, temperature, vocab_size, LOWEST: tl.constexpr, SIZE: tl.constexpr):
    """Return what a block's tokens weigh, and all of them together."""
    inside = start + tl.arange(0, SIZE) < vocab_size
    logits = _block(logits_row, start, vocab_size, LOWEST, SIZE)
    weights = tl.where(inside, tl.exp((logits - largest) / temperature), 0.0)
    return weights, tl.sum(weights, axis=0)


@triton.jit
def _total(logits_row, largest, temperature, vocab_size, LOWEST: tl.constexpr, SIZE: tl.constexpr):
    """Return what all tokens of a row weigh together."""
    total = largest * 0.0
    for start in range(0, vocab_size, SIZE):
        _, of_block = _weights(logits_row, start, largest, temperature, vocab_size, LOWEST, SIZE)
        total += of_block
    return total


@triton.jit
def _draw_kernel(
    logits_ptr,
    rows_ptr,
    temperatures_ptr,
    draws_ptr,
    tokens_ptr,
    row_stride,
    vocab_size,
    LOWEST: tl.constexpr,
    SIZE: tl.constexpr,
):
    """Grid (rows,)."""
    own = tl.program_id(0)
    logits_row = logits_ptr + tl.load(rows_ptr + own) * row_stride
    temperature = tl.load(temperatures_ptr + own)
    largest = _largest(logits_row, vocab_size, LOWEST, SIZE)
    total = _total(logits_row, largest, temperature, vocab_size, LOWEST, SIZE)
    wanted = tl.load(draws_ptr + own) * total
    before = largest * 0.0
    # a draw that rounding carries past the last token ends at the last one that weighs something
    token = tl.full([], 0, dtype=tl.int32)
    is_found = tl.full([], 0, dtype=tl.int32)
    for start in range(0, vocab_size, SIZE):
        if is_found == 0:
            weights, of_block = _weights(logits_row, start, largest, temperature, vocab_size, LOWEST, SIZE)
            if of_block > 0.0:
                places = tl.arange(0, SIZE)
                is_above = (before + tl.cumsum(weights, axis=0) > wanted) & (weights > 0.0)
                first = tl.min(tl.where(is_above, places, SIZE), axis=0)
                last = tl.max(tl.where(weights > 0.0, places, 0), axis=0)
                is_here = first < SIZE
                token = start + tl.where(is_here, first, last)
                is_found = is_here.to(tl.int32)
            before += of_block
    tl.store(tokens_ptr + own, token.to(tl.int64))


@triton.jit
def _logprobs_kernel(
    logits_ptr,
    rows_ptr,
    tokens_ptr,
    temperatures_ptr,
    found_ptr,
    row_stride,
    vocab_size,
    LOWEST: tl.constexpr,
    SIZE: tl.constexpr,
):
    """Grid (rows,)."""
    own = tl.program_id(0)
    logits_row = logits_ptr + tl.load(rows_ptr + own) * row_stride
    temperature = tl.load(temperatures_ptr + own)
    largest = _largest(logits_row, vocab_size, LOWEST, SIZE)
    total = _total(logits_row, largest, temperature, vocab_size, LOWEST, SIZE)
    picked = tl.load(logits_row + tl.load(tokens_ptr + own)).to(tl.float64)
    tl.store(found_ptr + own, (picked - largest) / temperature - tl.log(total))


def draw_tokens(logits_BV: Tensor, *, rows_C: Tensor, temperatures_C: Tensor, draws_C: Tensor) -> Tensor:
    """Return a token of each row."""
    found_C = torch.empty_like(rows_C)
    _launch(_draw_kernel, logits_BV, rows_C, temperatures_C, draws_C, found_C)
    return found_C


def picked_logprobs(logits_BV: Tensor, *, rows_C: Tensor, tokens_C: Tensor, temperatures_C: Tensor) -> Tensor:
    """Return the logarithms [C]."""
    found_C = torch.empty(len(rows_C), dtype=torch.float64, device=logits_BV.device)
    _launch(_logprobs_kernel, logits_BV, rows_C, tokens_C, temperatures_C, found_C)
    return found_C


def _launch(kernel, logits_BV: Tensor, rows_C: Tensor, *columns: Tensor) -> None:
    """Run a kernel for each row that is asked for; ``columns`` [C] are what it reads for each, and what it writes."""
    if not len(rows_C):
        return
    with on_device_of(logits_BV):
        kernel[(len(rows_C),)](
            logits_BV,
            rows_C,
            *columns,
            logits_BV.stride(0),
            logits_BV.shape[1],
            LOWEST=LEAST,
            SIZE=BLOCK,
            num_warps=WARPS,
        )
