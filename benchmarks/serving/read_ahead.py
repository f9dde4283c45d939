"""An experiment: while the small kernels between two frozen products run, another stream reads what comes next.

Decoding is bound by bytes, and between two products the memory is idle. The first bytes of the next weight, and the
factors of all adapters of the next linear, are then found in the second-level cache.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
# a jitted function has no Python types: its operands are pointers and tiles

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import triton
import triton.language as tl
from torch import Tensor

from cohort.adapters.bank import AdapterBank
from cohort.kernels.packed_linear.frozen_product import plain_weight
from cohort.models.decoder import Decoder

__all__ = ["reading_ahead"]

_WORDS = 8192


@triton.jit
def _touch_kernel(words_ptr, out_ptr, count, BLOCK: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    words = tl.load(words_ptr + places, mask=places < count, other=0, eviction_policy="evict_last")
    # a load whose value is not used would not be there
    largest = tl.max(words)
    tl.store(out_ptr, largest, mask=largest == 0x7FC00123)


@triton.jit
def _touch_rows_kernel(words_ptr, out_ptr, row_stride, width, BLOCK: tl.constexpr):
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    places = tl.program_id(0).to(tl.int64) * row_stride + columns
    words = tl.load(words_ptr + places, mask=columns < width, other=0, eviction_policy="evict_last")
    largest = tl.max(words)
    tl.store(out_ptr, largest, mask=largest == 0x7FC00123)


@contextmanager
def reading_ahead(decoder: Decoder, *, megabytes: float = 0, bank: AdapterBank | None = None) -> Iterator[None]:
    """Inside, passes that are recorded read behind each product the first bytes of the next product's weight.

    Args:
        bank: Read the rank rows of the next linear first, all of them.
    """
    if decoder.device.type != "cuda":
        yield
        return
    products = decoder.products
    names = [[part.name for part in linear.parts] for layer in decoder.layers for linear in layer.linears]
    side = torch.cuda.Stream(decoder.device)
    out = torch.zeros(1, dtype=torch.int32, device=decoder.device)

    def read_factors(index: int) -> None:
        if bank is None or index >= len(names):
            return
        # factors of a layer's linear lie one after the other
        columns = [bank.layout.columns[name] for name in names[index]]
        start, stop = columns[0].a.start, columns[-1].b.stop
        words = bank.compute_RD.view(torch.int32)[:, start // 2 : stop // 2]
        grid = (words.shape[0], triton.cdiv(words.shape[1], _WORDS))
        _touch_rows_kernel[grid](words, out, words.stride(0), words.shape[1], BLOCK=_WORDS, num_warps=4)

    def read(index: int) -> None:
        read_factors(index)
        weight = plain_weight(products[index])
        if weight is not None and megabytes:
            words = weight.view(torch.int32).flatten()[: int(megabytes * 2**18)]
            _touch_kernel[(triton.cdiv(len(words), _WORDS),)](words, out, len(words), BLOCK=_WORDS, num_warps=4)

    def with_next(index: int) -> object:
        own = type(products[index]).forward

        def forward(x_TK: Tensor) -> Tensor:
            y_TN: Tensor = own(products[index], x_TK)
            if torch.cuda.is_current_stream_capturing():
                if index + 1 < len(products):
                    side.wait_stream(torch.cuda.current_stream())
                    with torch.cuda.stream(side):
                        read(index + 1)
                else:
                    torch.cuda.current_stream().wait_stream(side)
            return y_TN

        return forward

    for index, product in enumerate(products):
        vars(product)["forward"] = with_next(index)
    # compiled before a graph is recorded
    for index in range(4):
        read(index)
    try:
        yield
    finally:
        for product in products:
            del vars(product)["forward"]
