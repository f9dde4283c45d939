"""A trial's state as one self-checking file. Parking to disk, checkpoints and resume share it."""

from __future__ import annotations

import json
import zlib
from collections.abc import Collection
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from cohort.adapters.bank import AdapterState
from cohort.core.errors import RunStateError
from cohort.training.trial import TrialState

__all__ = ["DamagedStateError", "deserialise_state", "read_weights", "serialise_state", "serialise_weights"]

_FORMAT = "cohort-trial-state-3"
_HEADER = "cohort"


class DamagedStateError(RunStateError):
    """A state file is truncated or its content does not match its checksum."""


def serialise_state(state: TrialState) -> bytes:
    """Return the bytes of ``state``, with a checksum over the tensors in the header."""
    return _save(state.adapter.tensors, step=state.step)


def serialise_weights(weights_rD: Tensor, *, step: int) -> bytes:
    """Return the bytes of a best checkpoint: weights alone."""
    return _save({"weights": weights_rD}, step=step)


def deserialise_state(path: Path, *, moments: Collection[str]) -> TrialState:
    """Read what :func:`serialise_state` wrote of a trial whose optimizer has ``moments``.

    Raises:
        DamagedStateError: the file is truncated, altered or of another kind.
    """
    tensors, step = _load(path, names=("weights", *moments))
    return TrialState(adapter=AdapterState(weights=tensors.pop("weights"), moments=tensors), step=step)


def read_weights(path: Path) -> tuple[Tensor, int]:
    """Read weights [r, D] and step of what :func:`serialise_weights` or :func:`serialise_state` wrote.

    Raises:
        DamagedStateError: the file is truncated, altered or of another kind.
    """
    tensors, step = _load(path, names=("weights",))
    return tensors["weights"], step


def _save(tensors: dict[str, Tensor], *, step: int) -> bytes:
    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    header = {"format": _FORMAT, "step": step, "crc32": _checksum(contiguous, step)}
    # one entry: safetensors writes several in an order of its own, and equal states must be equal bytes
    return save(contiguous, metadata={_HEADER: json.dumps(header, sort_keys=True)})


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
    if _checksum(tensors, step) != header["crc32"]:
        raise DamagedStateError(f"{path} does not match its checksum; use the last good checkpoint instead")
    return {name: tensors[name] for name in names}, step


def _checksum(tensors: dict[str, Tensor], step: int) -> int:
    # whole files have a SHA-256 in the checkpoint that names them; this one is for a state that is read by itself
    found = zlib.crc32(str(step).encode())
    for name in sorted(tensors):
        found = zlib.crc32(name.encode(), found)
        found = zlib.crc32(tensors[name].contiguous().view(torch.uint8).numpy().data, found)
    return found
