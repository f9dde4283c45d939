"""Measured memory of passes on disk: what a profile found, by base model, hardware, ranks and length of rows.

One file per key, written beside and renamed. A file that cannot be read, or of another version of what computes, counts
as absent: the next run measures again. A run that runs out of memory all the same removes it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cohort.core.durable_files import write_text
from cohort.core.errors import StorageFullError
from cohort.core.memory_records import PassKind, PassPeak, PassSize
from cohort.data.cache import default_cache_directory
from cohort.engine.machine.cost_cache import CostKey, length_bucket
from cohort.engine.machine.machine import package_versions

__all__ = ["KnownPasses", "MemoryKey", "forget_passes", "read_passes", "write_passes"]

VERSION = 1
# what lays out a pass's memory; another version of one of them may keep other things
_PACKAGES = ("cohort-lora", "torch", "triton")


@dataclass(frozen=True, kw_only=True)
class MemoryKey:
    """What measured passes hold for.

    Attributes:
        cost: Base model, hardware, precision, usual length of rows and adapted linears.
        ranks: Narrowest and widest.
        longest: Longest row, to the next power of two.
        versions: Of what computes.
    """

    cost: CostKey
    ranks: tuple[int, int]
    longest: int
    versions: tuple[str, ...]

    @classmethod
    def of(cls, cost: CostKey, *, ranks: Sequence[int], longest: int) -> MemoryKey:
        """Return the key of a task's passes."""
        versions = package_versions()
        return cls(
            cost=cost,
            ranks=(min(ranks), max(ranks)),
            longest=length_bucket(longest),
            versions=tuple(versions.get(package, "none") for package in _PACKAGES),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the key as it is written."""
        return {**asdict(self), "ranks": list(self.ranks), "versions": list(self.versions)}


@dataclass(frozen=True, kw_only=True)
class KnownPasses:
    """What a profile measured.

    Attributes:
        peaks: Of its passes.
        correction: Factor on what is fitted to them.
        checked_tokens: The largest pass that was run.
        reserve_bytes: What the allocator held beyond its own peak.
        fit_error_percent: Mean absolute error on the passes of the sweep.
    """

    peaks: tuple[PassPeak, ...]
    correction: float
    checked_tokens: int
    reserve_bytes: int
    fit_error_percent: float


def read_passes(key: MemoryKey, *, directory: Path | None = None) -> KnownPasses | None:
    """Return what was measured under ``key``; None where nothing was, or it cannot be read.

    Args:
        key: What for.
        directory: Of all caches; ``$COHORT_CACHE_DIR`` or its default when None.
    """
    try:
        content = json.loads(_file(key, directory).read_text(encoding="utf-8"))
        if content["version"] != VERSION or content["key"] != key.to_json():
            return None
        return _from_json(content["passes"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_passes(key: MemoryKey, passes: KnownPasses, *, directory: Path | None = None) -> bool:
    """Keep what was measured, in the place of what was; return whether it could be written.

    A cache that cannot be written costs the next run some seconds, never this one.
    """
    text = json.dumps({"version": VERSION, "key": key.to_json(), "passes": _to_json(passes)})
    try:
        write_text(_file(key, directory), text)
    except (OSError, StorageFullError):
        return False
    return True


def forget_passes(key: MemoryKey, *, directory: Path | None = None) -> None:
    """Have the next run measure anew."""
    with suppress(OSError):
        _file(key, directory).unlink(missing_ok=True)


def _file(key: MemoryKey, directory: Path | None) -> Path:
    name = hashlib.sha256(json.dumps(key.to_json(), sort_keys=True).encode()).hexdigest()[:16]
    return (directory or default_cache_directory()) / "memory" / f"{name}.json"


def _to_json(passes: KnownPasses) -> dict[str, Any]:
    plain = asdict(passes)
    plain["peaks"] = [{**asdict(peak), "kind": peak.kind.value} for peak in passes.peaks]
    return plain


def _from_json(plain: dict[str, Any]) -> KnownPasses:
    peaks = tuple(
        PassPeak(
            kind=PassKind(entry["kind"]),
            size=PassSize(**entry["size"]),
            forward_bytes=int(entry["forward_bytes"]),
            backward_bytes=int(entry["backward_bytes"]),
        )
        for entry in plain["peaks"]
    )
    passes = KnownPasses(
        peaks=peaks,
        correction=float(plain["correction"]),
        checked_tokens=int(plain["checked_tokens"]),
        reserve_bytes=int(plain["reserve_bytes"]),
        fit_error_percent=float(plain["fit_error_percent"]),
    )
    sizes = (value for peak in peaks for value in (peak.forward_bytes, peak.backward_bytes, peak.size.num_rows))
    if {peak.kind for peak in peaks} != set(PassKind) or min(sizes) < 0 or not 1 <= passes.correction < 1e3:
        raise ValueError("passes of both kinds, with bytes and rows of at least 0, and a factor of at least 1")
    return passes
