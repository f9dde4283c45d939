"""An experiment: while the small kernels between two frozen products run, another stream reads the next weight's head.

Decoding is bound by the weights' bytes, and between two products the memory is idle. What is read then is found in the
second-level cache by the product.
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

from cohort.kernels.packed_linear import FrozenProduct
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


@contextmanager
def reading_ahead(decoder: Decoder, *, megabytes: float) -> Iterator[None]:
    """Inside, passes that are recorded read the first bytes of each product's weight behind the product before it."""
    if not megabytes or decoder.device.type != "cuda":
        yield
        return
    products = decoder.products
    side = torch.cuda.Stream(decoder.device)
    out = torch.zeros(1, dtype=torch.int32, device=decoder.device)

    def read(product: FrozenProduct) -> None:
        weight = plain_weight(product)
        if weight is not None:
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
                        read(products[index + 1])
                else:
                    torch.cuda.current_stream().wait_stream(side)
            return y_TN

        return forward

    for index, product in enumerate(products):
        vars(product)["forward"] = with_next(index)
    # compiled before a graph is recorded
    read(products[0])
    try:
        yield
    finally:
        for product in products:
            del vars(product)["forward"]
