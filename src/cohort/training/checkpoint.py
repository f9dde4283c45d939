"""A trial's state as one self-checking file. Parking to disk, checkpoints and resume share it."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from cohort.adapters.bank import AdapterState
from cohort.core.errors import RunStateError
from cohort.training.trial import TrialState

__all__ = ["DamagedStateError", "deserialise_state", "file_parts", "read_weights"]

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


def file_parts(
    tensors: Mapping[str, Tensor], *, step: int, read: Callable[[Tensor], Iterable[memoryview]] | None = None
) -> Iterator[bytes | memoryview]:
    """Yield the parts of a state's file, one after the other, without a copy of the tensors.

    A state of an 8B model is 400 MB, of which safetensors' own writer makes two copies while it holds the interpreter.
    Parts are views: each is good until the next is asked for, and the tensors must not change meanwhile.

    Args:
        tensors: By name: ``weights`` alone for a best checkpoint, with the moments for a state.
        read: Yields the bytes of a contiguous tensor in parts; by default of one on the host, in one part. It is called
            twice for each, as the checksum stands in the header.
    """
    read = read or _whole
    # sorted, as safetensors sorts them: equal states must be equal bytes
    contiguous = {name: tensors[name].contiguous() for name in sorted(tensors)}
    own = {"format": _FORMAT, "step": step, "crc32": _checksum(contiguous, step, read)}
    header: dict[str, object] = {"__metadata__": {_HEADER: json.dumps(own, sort_keys=True)}}
    offset = 0
    for name, tensor in contiguous.items():
        end = offset + tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": _DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    # the data begins at a multiple of eight
    text += b" " * (-len(text) % 8)
    yield struct.pack("<Q", len(text)) + text
    for tensor in contiguous.values():
        yield from read(tensor)


def deserialise_state(path: Path, *, moments: Collection[str]) -> TrialState:
    """Read the file of :func:`file_parts` of a trial whose optimizer has ``moments``.

    Raises:
        DamagedStateError: the file is truncated, altered or of another kind.
    """
    tensors, step = _load(path, names=("weights", *moments))
    return TrialState(adapter=AdapterState(weights=tensors.pop("weights"), moments=tensors), step=step)


def read_weights(path: Path) -> tuple[Tensor, int]:
    """Read weights [r, D] and step of a file of :func:`file_parts`.

    Raises:
        DamagedStateError: the file is truncated, altered or of another kind.
    """
    tensors, step = _load(path, names=("weights",))
    return tensors["weights"], step


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


def _checksum(tensors: Mapping[str, Tensor], step: int, read: Callable[[Tensor], Iterable[memoryview]]) -> int:
    # whole files have a SHA-256 in the checkpoint that names them; this one is for a state that is read by itself
    found = zlib.crc32(str(step).encode())
    for name in sorted(tensors):
        found = zlib.crc32(name.encode(), found)
        for part in read(tensors[name].contiguous()):
            found = zlib.crc32(part, found)
    return found


def _whole(tensor: Tensor) -> tuple[memoryview]:
    return (tensor.reshape(-1).view(torch.uint8).numpy().data,)
