"""The head of a safetensors file, for writers that have the tensors in parts: what stands before the data."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence

__all__ = ["safetensors_header"]

# the data begins at a multiple of it
_ALIGNMENT = 8


def safetensors_header(
    tensors: Mapping[str, tuple[str, Sequence[int], int]], *, metadata: Mapping[str, str], least_bytes: int = 0
) -> bytes:
    """Return what stands before the data of tensors that follow in the order of ``tensors``, without holes.

    Args:
        tensors: Dtype as safetensors spells it, shape and bytes of each, by name. Wider dtypes have to come first, so
            that each tensor begins at a multiple of its entries' size.
        least_bytes: Spaces fill it up to these: a head that is written behind its data has to fit into its place.
    """
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    offset = 0
    for name, (dtype, shape, num_bytes) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + num_bytes]}
        offset += num_bytes
    text = json.dumps(header, separators=(",", ":")).encode()
    size = max(len(text), least_bytes - _ALIGNMENT)
    text = text.ljust(size + -size % _ALIGNMENT)
    return struct.pack("<Q", len(text)) + text
