"""Quantised weights on disk, so that a base model is quantised once: one safetensors file for each layer.

A folder belongs to one state of the checkpoint's files (by path, inode, size and both times) and one version of a
format. A file gets its name when it is complete; one that is missing, damaged or of other bits counts as absent.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from cohort.core.durable_files import atomic_file
from cohort.core.errors import StorageFullError
from cohort.models.weight_formats import WeightFormat

__all__ = ["QuantisedFiles"]

# base models, each in one format; beyond them the one that was used longest ago goes
_MOST_FOLDERS = 4


class QuantisedFiles:
    """Reads and writes what a format keeps of a checkpoint's tensors, by the group that shares a file."""

    def __init__(self, cache_directory: Path, *, files: Iterable[Path], weight_format: WeightFormat) -> None:
        """Name the folder for ``files``, the checkpoint's, in ``weight_format``; nothing is read or written yet."""
        assert weight_format.quantisation is not None, "weights that are kept as they are need no second file"
        stamps = [_stamp(file) for file in sorted(files)]
        identity = json.dumps([weight_format.name, weight_format.quantisation.version, stamps])
        self._parent = cache_directory / "quantised"
        self._folder = self._parent / f"{weight_format.name}-{hashlib.sha256(identity.encode()).hexdigest()[:24]}"

    def read(self, group: str, *, device: torch.device) -> dict[str, dict[str, Tensor]] | None:
        """Return what is kept of each tensor of the group, by key and name; None where that is not known."""
        found: dict[str, dict[str, Tensor]] = {}
        try:
            with safe_open(self._file(group), framework="pt") as opened:
                expected = (opened.metadata() or {}).get("sum")
                for entry in opened.keys():  # noqa: SIM118 - no mapping
                    key, _, name = entry.rpartition("/")
                    stored = opened.get_tensor(entry)
                    # memory of its own: what is mapped could be cut short by another process
                    found.setdefault(key, {})[name] = torch.empty_like(stored, device=device).copy_(stored)
        except (OSError, SafetensorError, ValueError, RuntimeError):
            return None
        if str(_sum(found)) != expected:
            return None
        with suppress(OSError):
            os.utime(self._folder)
        return found

    def write(self, group: str, kept: Mapping[str, Mapping[str, Tensor]]) -> bool:
        """Keep a group; return whether that was possible. The cache only saves time: a full disk is no error."""
        tensors = {f"{key}/{name}": tensor for key, own in kept.items() for name, tensor in own.items()}
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with atomic_file(self._file(group)) as partial:
                contents = {entry: tensor.cpu().contiguous() for entry, tensor in tensors.items()}
                save_file(contents, partial, metadata={"sum": str(_sum(kept))})
            self._prune()
        except (OSError, StorageFullError, SafetensorError):
            return False
        return True

    def _file(self, group: str) -> Path:
        return self._folder / f"{group}.safetensors"

    def _prune(self) -> None:
        others = sorted((path for path in self._parent.iterdir() if path.is_dir()), key=_modified, reverse=True)
        for old in others[_MOST_FOLDERS:]:
            if old != self._folder:
                shutil.rmtree(old, ignore_errors=True)


def _stamp(file: Path) -> list[str | int]:
    resolved = file.resolve()
    found = resolved.stat()
    return [str(resolved), found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns]


def _modified(path: Path) -> float:
    return path.stat().st_mtime if path.exists() else 0.0


def _sum(kept: Mapping[str, Mapping[str, Tensor]]) -> int:
    """Return a number that a flipped bit changes, computed where the tensors are."""
    total = 0
    for key in sorted(kept):
        for name in sorted(kept[key]):
            content = kept[key][name].detach().contiguous().flatten().view(torch.uint8)
            whole = content.numel() // 8 * 8
            words = content[:whole].view(torch.int64)
            # wraps around, which loses nothing
            total += int(words.sum()) + int(content[whole:].sum())
    return total
