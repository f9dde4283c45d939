"""What is left of the kernels that were compiled on this machine, and which of them are damaged.

Triton trusts what it finds: a run would end at a file that a full disk or a broken copy has cut off.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import struct
from pathlib import Path

import torch

from cohort import kernels
from cohort.core.durable_files import write_text
from cohort.machine.compile_ahead.triton_cache import MARKER_SUFFIX, triton_cache

__all__ = ["cache_marker", "is_whole", "mark", "remove_damaged"]

_GROUP = "__grp__"
_BINARIES = (".cubin", ".hsaco")
_ELF_HEADER = struct.Struct("<4s28xQQ6xHHHH")


def cache_marker(*facts: object) -> Path | None:
    """Return the file whose presence says that all kernels for ``facts`` are in Triton's cache; None without Triton.

    It lies in that cache, so that emptying the cache removes it, too. It depends on the sources of the kernels,
    on the versions of what compiles them and on the GPU.
    """
    cache = triton_cache()
    if cache is None:
        return None
    import triton

    digest = hashlib.sha256(repr((facts, triton.__version__, torch.__version__)).encode())
    if torch.cuda.is_available():
        digest.update(torch.cuda.get_device_name().encode())
    for path in sorted(Path(*kernels.__path__).rglob("*.py")):
        digest.update(path.read_bytes())
    return cache / f"cohort-{digest.hexdigest()[:32]}{MARKER_SUFFIX}"


def is_whole(marker: Path) -> bool:
    """Return whether Triton's cache can still hold all that it held, at this path, when ``marker`` was written."""
    try:
        before, _, cache = marker.read_text(encoding="utf-8").strip().partition(" kernels in ")
        # where somebody removed some, the workers find which are missing; Triton looks for files where they were
        # written, so a cache that was moved holds none
        return _num_folders(marker.parent) >= int(before) and cache == str(marker.parent)
    except (OSError, ValueError):
        return False


def mark(marker: Path) -> None:
    """Write down that Triton's cache holds all kernels that ``marker`` stands for."""
    marker.parent.mkdir(parents=True, exist_ok=True)
    # a part of it reads as none, so the run need not wait for the disk
    write_text(marker, f"{_num_folders(marker.parent)} kernels in {marker.parent}\n", is_flushed=False)


def remove_damaged(cache: Path) -> int:
    """Remove kernels from Triton's cache that it could not load; return how many.

    What another process is compiling meanwhile is left alone: it is no kernel before its last file is there.
    """
    try:
        # Triton keeps each kernel in a folder of its own, and its list of files in one of them
        lists = list(cache.glob(f"*/{_GROUP}*.json"))
    except OSError:
        return 0
    damaged = {path.parent for path in lists if not _is_loadable(path)}
    for folder in damaged:
        shutil.rmtree(folder, ignore_errors=True)
    return len(damaged)


def _is_loadable(list_of_files: Path) -> bool:
    folder = list_of_files.parent
    try:
        names = json.loads(list_of_files.read_text(encoding="utf-8"))["child_paths"]
        description = folder / list_of_files.name.removeprefix(_GROUP)
        if not isinstance(json.loads(description.read_text(encoding="utf-8")), dict):
            return False
        # what came before the binary is for readers, and some strip it from the caches that they ship
        return all(_is_complete(folder / name) for name in names if name.endswith(_BINARIES))
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _is_complete(path: Path) -> bool:
    size = path.stat().st_size
    if path.suffix != ".cubin":
        return size > 0
    with path.open("rb") as file:
        header = file.read(_ELF_HEADER.size)
    if len(header) < _ELF_HEADER.size:
        return False
    # its tables of segments and sections are the last of it
    magic, segments, sections, segment_bytes, num_segments, section_bytes, num_sections = _ELF_HEADER.unpack(header)
    ends = (segments + segment_bytes * num_segments, sections + section_bytes * num_sections)
    return bool(magic == b"\x7fELF" and size >= max(ends))


def _num_folders(cache: Path) -> int:
    return sum(entry.is_dir() for entry in cache.iterdir())
