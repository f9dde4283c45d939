"""A trial's state as one self-checking file. Parking to disk, checkpoints and resume share it."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import BinaryIO

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from cohort.adapters.adapter_state import AdapterState
from cohort.core.errors import RunStateError
from cohort.training.trial import TrialState

__all__ = ["DamagedStateError", "deserialise_state", "is_whole_state", "read_weights", "write_state"]

_FORMAT = "cohort-trial-state-3"
_HEADER = "cohort"
# the names that safetensors has for them
_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int8: "I8",
    torch.uint8: "U8",
}


class DamagedStateError(RunStateError):
    """A state file is truncated or its content does not match its checksum."""


def write_state(
    stream: BinaryIO,
    tensors: Mapping[str, Tensor],
    *,
    step: int,
    read: Callable[[Tensor], Iterable[memoryview]] | None = None,
) -> None:
    """Write a state's file to an empty ``stream``, without a copy of the tensors.

    A state of an 8B model is 400 MB, of which safetensors' own writer makes two copies while it holds the interpreter.
    Each tensor is read once: the header, which has the checksum, is written last into the room that is left for it.

    Args:
        stream: Can be sought in.
        tensors: By name: ``weights`` alone for a best checkpoint, with the moments for a state. They must not change
            meanwhile.
        step: Optimizer steps done.
        read: Yields the bytes of a contiguous tensor in parts, each good until the next is asked for; by default of one
            on the host, in one part.
    """
    # sorted, as safetensors sorts them: equal states must be equal bytes
    contiguous = {name: tensors[name].contiguous() for name in sorted(tensors)}
    # with the longest checksum there is
    size = len(_header(contiguous, step=step, checksum=2**32 - 1))
    # the data begins at a multiple of eight
    size += -size % 8
    stream.seek(8 + size)
    checksum = _checksum(contiguous, step, read or _whole, write=stream.write)
    stream.seek(0)
    stream.write(struct.pack("<Q", size) + _header(contiguous, step=step, checksum=checksum).ljust(size))


def _header(tensors: Mapping[str, Tensor], *, step: int, checksum: int) -> bytes:
    own = {"format": _FORMAT, "step": step, "crc32": checksum}
    header: dict[str, object] = {"__metadata__": {_HEADER: json.dumps(own, sort_keys=True)}}
    offset = 0
    for name, tensor in tensors.items():
        end = offset + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": _DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
    return json.dumps(header, separators=(",", ":")).encode()


def deserialise_state(path: Path, *, moments: Collection[str]) -> TrialState:
    """Read the file of :func:`write_state` of a trial whose optimizer has ``moments``.

    Raises:
        DamagedStateError: the file is truncated, altered or of another kind.
    """
    tensors, step = _load(path, names=("weights", *moments))
    return TrialState(adapter=AdapterState(weights=tensors.pop("weights"), moments=tensors), step=step)


def read_weights(path: Path) -> tuple[Tensor, int]:
    """Read weights [r, D] and step of a file of :func:`write_state`.

    Raises:
        DamagedStateError: the file is truncated, altered or of another kind.
    """
    tensors, step = _load(path, names=("weights",))
    return tensors["weights"], step


def is_whole_state(path: Path) -> bool:
    """Return whether a file of :func:`write_state` is there, neither torn nor altered."""
    try:
        return path.is_file() and bool(read_weights(path))
    except DamagedStateError:
        return False


def _load(path: Path, *, names: tuple[str, ...]) -> tuple[dict[str, Tensor], int]:
    try:
        with safe_open(path, framework="pt") as opened:
            header = json.loads((opened.metadata() or {}).get(_HEADER, "{}"))
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 (safe_open is no mapping)
    except (SafetensorError, OSError, ValueError) as error:
        raise DamagedStateError(f"{path} cannot be read ({error}); use the last good checkpoint instead") from error
    if header.get("format") != _FORMAT or any(name not in tensors for name in names):
        raise DamagedStateError(f"{path} is not a trial state of this version (format {header.get('format')!r})")
    step = int(header["step"])
    if _checksum(tensors, step, _whole) != header["crc32"]:
        raise DamagedStateError(f"{path} does not match its checksum; use the last good checkpoint instead")
    return {name: tensors[name] for name in names}, step


def _checksum(
    tensors: Mapping[str, Tensor],
    step: int,
    read: Callable[[Tensor], Iterable[memoryview]],
    *,
    write: Callable[[memoryview], object] = lambda _: None,
) -> int:
    """Return the checksum of a state, and pass each part that is read to ``write``."""
    # whole files have a SHA-256 in the checkpoint that names them; this one is for a state that is read by itself
    found = zlib.crc32(str(step).encode())
    for name in sorted(tensors):
        found = zlib.crc32(name.encode(), found)
        for part in read(tensors[name].contiguous()):
            found = zlib.crc32(part, found)
            write(part)
    return found


def _whole(tensor: Tensor) -> tuple[memoryview]:
    return (tensor.reshape(-1).view(torch.uint8).numpy().data,)
