"""A safetensors file with a sum of its bytes, by which damage is found: written block by block, without copies.

safetensors' own writer makes a copy of all tensors while it holds the interpreter. The sum is known behind the data,
which may come from a device in blocks; the head, which has it, is written last, into a place that is left for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from cohort.core.safetensors_header import safetensors_header

__all__ = ["SUM_KEY", "sum_of", "write_summed"]

SUM_KEY = "sum"
_LONGEST_SUM = "-" * 32
_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def write_summed(
    path: Path, tensors: Mapping[str, Tensor], *, blocks: Callable[[Tensor], Iterable[memoryview]]
) -> None:
    """Write ``tensors`` by name.

    Args:
        blocks: Yields the bytes of a tensor, each block but the last a multiple of 8.

    Raises:
        ValueError: a dtype that such a file does not have.
    """
    if unknown := {tensor.dtype for tensor in tensors.values()} - _DTYPES.keys():
        raise ValueError(f"found {unknown}; allowed: {', '.join(_DTYPES.values())}")
    # wider entries first, as the head wants them
    ordered = dict(sorted(tensors.items(), key=lambda entry: (-entry[1].element_size(), entry[0])))
    sizes = {name: (_DTYPES[tensor.dtype], tensor.shape, tensor.nbytes) for name, tensor in ordered.items()}
    place = safetensors_header(sizes, metadata={SUM_KEY: _LONGEST_SUM})
    total = 0
    with path.open("wb") as file:
        file.write(place)
        for tensor in ordered.values():
            words = tail = 0
            for block in blocks(tensor):
                whole = block.nbytes // 8 * 8
                # numpy lets other threads go on meanwhile, and calls no other cores
                words += int(np.frombuffer(block[:whole], dtype=np.int64).sum())
                tail += sum(block[whole:])
                file.write(block)
            total += _wrapped(words) + tail
        file.seek(0)
        file.write(safetensors_header(sizes, metadata={SUM_KEY: str(total)}, least_bytes=len(place)))


def sum_of(tensors: Iterable[Tensor]) -> int:
    """Return the number that a file of ``tensors`` carries, which a flipped bit changes, computed where they are.

    A GPU is waited for once.
    """
    sums: list[Tensor] = []
    for tensor in tensors:
        content = tensor.detach().contiguous().flatten().view(torch.uint8)
        whole = content.numel() // 8 * 8
        # wraps around, which loses nothing
        sums += [content[:whole].view(torch.int64).sum(), content[whole:].sum()]
    return sum(torch.stack([each.to(sums[0].device) for each in sums]).tolist()) if sums else 0


def _wrapped(words: int) -> int:
    """Return a sum of 64-bit words as 64 bits have it."""
    return (words + 2**63) % 2**64 - 2**63
