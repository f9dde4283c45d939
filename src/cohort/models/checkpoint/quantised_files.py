"""Quantised weights on disk, so that a base model is quantised once: one safetensors file for each layer.

A folder belongs to one state of the checkpoint's files (by path, inode, size and both times) and one version of a
format. A file gets its name when it is complete; one that is missing, damaged or of other bits counts as absent.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from cohort.core.durable_files import atomic_file, remove_old_leftovers
from cohort.core.errors import StorageFullError
from cohort.kernels.device_blocks import OfThread
from cohort.models.checkpoint.copies_ahead import CopiesAhead, OwnCopies
from cohort.models.checkpoint.summed_file import SUM_KEY, sum_of, write_summed
from cohort.models.weight_formats import WeightFormat
from cohort.models.weight_formats.weight_format import StoredTensors

__all__ = ["QuantisedFiles", "WritingStoppedError"]

# base models, each in one format; beyond them the one that was used longest ago goes
_MOST_FOLDERS = 4


class WritingStoppedError(Exception):
    """A file was not wanted to its end."""


class QuantisedFiles:
    """Reads and writes what a format keeps of a checkpoint's tensors, by the group that shares a file.

    Attributes:
        absent: The groups that were asked for and are not there.
    """

    def __init__(self, cache_directory: Path, *, files: Iterable[Path], weight_format: WeightFormat) -> None:
        """Name the folder for ``files``, the checkpoint's, in ``weight_format``; nothing is read or written yet."""
        assert weight_format.quantisation is not None, "weights that are kept as they are need no second file"
        stamps = [_stamp(file) for file in sorted(files)]
        identity = json.dumps([weight_format.name, weight_format.quantisation.version, stamps])
        self._parent = cache_directory / "quantised"
        self._folder = self._parent / f"{weight_format.name}-{hashlib.sha256(identity.encode()).hexdigest()[:24]}"
        self.absent: list[str] = []
        # the files that were found wanting
        self._damaged: dict[str, tuple[int, int] | None] = {}

    def begin_reading(
        self, group: str, keys: Collection[str], *, device: torch.device, copies: CopiesAhead | None = None
    ) -> Callable[[], dict[str, dict[str, Tensor]] | None] | None:
        """Begin to read what is kept of the tensors ``keys``, a group; None where there is no file that can be read.

        Returns:
            What waits for it, and returns it by key and name; None where it is damaged or has other tensors.
        """
        own, found = OwnCopies(copies), dict[str, dict[str, Tensor]]()
        self._damaged[group] = _identity(self._file(group))
        try:
            with safe_open(self._file(group), framework="pt") as opened:
                expected = (opened.metadata() or {}).get(SUM_KEY)
                for entry in opened.keys():  # noqa: SIM118 - no mapping
                    key, _, name = entry.rpartition("/")
                    found.setdefault(key, {})[name] = own.of(opened.get_tensor(entry), device=device)
        except (OSError, SafetensorError, ValueError, RuntimeError):
            self.absent.append(group)
            return None

        def finish() -> dict[str, dict[str, Tensor]] | None:
            own.wait()
            if found.keys() != set(keys) or str(sum_of(_by_name(found).values())) != expected:
                self.absent.append(group)
                return None
            with suppress(OSError):
                os.utime(self._folder)
            return found

        return finish

    def write(
        self,
        group: str,
        kept: Mapping[str, StoredTensors],
        *,
        blocks: Callable[[Tensor], Iterator[memoryview]] | None = None,
        stop: threading.Event | None = None,
    ) -> bool:
        """Keep a group; return whether that was possible. The cache only saves time: a full disk is no error.

        Nothing waits for the disk: a machine that stops may leave a part of a file, which then has another sum.

        Args:
            blocks: As of :func:`write_summed`; the default copies a device's tensor as a whole.
            stop: Set from another thread, it ends the writing at the next block.

        Raises:
            WritingStoppedError: ``stop`` was set; there is no such file then.
        """
        file = self._file(group)
        if _identity(file) not in (None, self._damaged.get(group)):
            # another process has written it meanwhile
            return True

        def read(tensor: Tensor) -> Iterator[memoryview]:
            for block in OfThread().blocks(tensor.cpu()) if blocks is None else blocks(tensor):
                if stop is not None and stop.is_set():
                    raise WritingStoppedError
                yield block

        try:
            with atomic_file(file, is_flushed=False) as partial:
                write_summed(partial, _by_name(kept), blocks=read)
        except (OSError, StorageFullError, ValueError):
            return False
        # another process may remove one meanwhile
        with suppress(OSError):
            self._prune()
        return True

    def remove_leftovers(self) -> None:
        """Remove what processes left that were killed as they wrote."""
        remove_old_leftovers(self._folder)

    def _file(self, group: str) -> Path:
        return self._folder / f"{group}.safetensors"

    def _prune(self) -> None:
        others = sorted((path for path in self._parent.iterdir() if path.is_dir()), key=_modified, reverse=True)
        for old in others[_MOST_FOLDERS:]:
            if old != self._folder:
                shutil.rmtree(old, ignore_errors=True)


def _by_name(kept: Mapping[str, StoredTensors]) -> dict[str, Tensor]:
    return {f"{key}/{name}": tensor for key, own in kept.items() for name, tensor in own.items()}


def _stamp(file: Path) -> list[str | int]:
    resolved = file.resolve()
    found = resolved.stat()
    return [str(resolved), found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns]


def _identity(file: Path) -> tuple[int, int] | None:
    """Return what another file by this name has otherwise; None where there is none."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def _modified(path: Path) -> float:
    return path.stat().st_mtime if path.exists() else 0.0
