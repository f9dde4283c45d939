"""The safetensors files of a model directory: which tensor is where, and whether every file is whole.

Only headers are read here. Format: 8 bytes little-endian header length, a JSON header with each tensor's dtype, shape
and byte range, then the data (github.com/huggingface/safetensors).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cohort.core.errors import Problem

__all__ = ["StoredTensor", "TensorFiles", "is_whole", "read_headers"]

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
_MAX_HEADER_BYTES = 100_000_000
_LFS_POINTER = b"version https://git-lfs"


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of a checkpoint: the file that holds it, its dtype as safetensors spells it, and its shape."""

    file: Path
    dtype: str
    shape: tuple[int, ...]


@dataclass
class TensorFiles:
    """What a directory's headers say, and all that is wrong with them."""

    tensors: dict[str, StoredTensor] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    unreadable: set[Path] = field(default_factory=set)


def read_headers(folder: Path) -> TensorFiles:
    """Read the headers of all weight files of ``folder``, single or sharded. Problems are collected, not raised."""
    result = TensorFiles()
    for file in _weight_files(folder, result):
        _read_header(file, result)
    return result


def is_whole(file: Path) -> bool:
    """Return whether a safetensors file has all the bytes that its header names.

    Raises:
        OSError: there is no such file, or it cannot be read.
    """
    try:
        header, data_bytes = _parse_header(file)
    except ValueError:
        return False
    return data_bytes >= _needed_bytes(header)


def _weight_files(folder: Path, result: TensorFiles) -> Iterable[Path]:
    single, index = folder / SINGLE_FILE, folder / INDEX_FILE
    if single.is_file():
        return [single]
    if index.is_file():
        try:
            names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
            return [folder / name for name in sorted(names)]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            result.problems.append(
                Problem(
                    where=str(index),
                    found=f"a broken index ({type(error).__name__}: {error})",
                    allowed='JSON with a "weight_map" from tensor names to files',
                    hint="Fetch the file again.",
                )
            )
            return []
    others = sorted(path.name for pattern in ("*.bin", "*.pth", "*.pt", "*.gguf") for path in folder.glob(pattern))
    result.problems.append(
        Problem(
            where=str(folder),
            found=f"no safetensors weights{', but ' + ', '.join(others[:3]) if others else ''}",
            allowed=f"{SINGLE_FILE}, or {INDEX_FILE} with its shards",
            hint="Convert the weights with transformers' save_pretrained."
            if others
            else "Fetch the model's weight files.",
        )
    )
    return []


def _read_header(file: Path, result: TensorFiles) -> None:
    try:
        header, data_bytes = _parse_header(file)
    except FileNotFoundError:
        _reject(file, result, found="no such file", allowed="every weight file of the model", hint="Fetch it.")
        return
    except PermissionError:
        hint = f"Give yourself the right: chmod u+r {file}."
        _reject(file, result, found="a file that you may not read", allowed="a readable file", hint=hint)
        return
    except (OSError, ValueError) as error:
        _reject(
            file, result, found=f"a damaged file ({error})", allowed="a whole safetensors file", hint="Fetch it again."
        )
        return
    needed = _needed_bytes(header)
    if data_bytes < needed:
        _reject(
            file,
            result,
            found=f"a truncated file: {data_bytes:,} bytes of tensors",
            allowed=f"{needed:,} bytes, as its header says",
            hint="Fetch it again; the download did not finish.",
        )
        return
    for key, entry in header.items():
        result.tensors[key] = StoredTensor(file, entry["dtype"], tuple(entry["shape"]))


def _parse_header(file: Path) -> tuple[dict[str, dict[str, Any]], int]:
    """Return the header without its metadata and the number of data bytes that are there."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        start = stream.read(8)
        if len(start) < 8:
            raise ValueError(f"only {size} bytes")
        (length,) = struct.unpack("<Q", start)
        if start == _LFS_POINTER[:8] and stream.read(len(_LFS_POINTER) - 8) == _LFS_POINTER[8:]:
            raise ValueError("a Git LFS pointer, which stands for the file: `git lfs pull` fetches it")
        if length > min(_MAX_HEADER_BYTES, size - 8):
            raise ValueError("the header runs past the end")
        header = json.loads(stream.read(length))
    if not isinstance(header, dict):
        raise ValueError("the header is no JSON object")
    header.pop("__metadata__", None)
    if not all(_describes_tensor(entry) for entry in header.values()):
        raise ValueError("the header does not describe tensors")
    return header, size - 8 - length


def _needed_bytes(header: Mapping[str, Mapping[str, Any]]) -> int:
    return max((entry["data_offsets"][1] for entry in header.values()), default=0)


def _describes_tensor(entry: Any) -> bool:
    return (
        isinstance(entry, dict)
        and isinstance(entry.get("dtype"), str)
        and isinstance(entry.get("shape"), list)
        and isinstance(entry.get("data_offsets"), list)
        and [type(offset) for offset in entry["data_offsets"]] == [int, int]
    )


def _reject(file: Path, result: TensorFiles, *, found: str, allowed: str, hint: str) -> None:
    result.unreadable.add(file)
    result.problems.append(Problem(where=str(file), found=found, allowed=allowed, hint=hint))
