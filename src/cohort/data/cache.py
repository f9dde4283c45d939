"""Tokenised rows on disk, so that the second start of a task is quick.

One file per key: a zip of plain arrays (numpy, no pickle), whose checksums reveal damage. A file gets its name when
it is complete; a file that cannot be read counts as absent.
"""

from __future__ import annotations

import json
import os
import zipfile
import zlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cohort.core.durable_files import atomic_file
from cohort.data.report import DataReport
from cohort.data.tokenised import TokenisedRows

__all__ = ["CachedData", "default_cache_directory", "read_cache", "write_cache"]

_MOST_FILES = 64


@dataclass(frozen=True, kw_only=True)
class CachedData:
    """What one cache file holds."""

    train: TokenisedRows
    validation: TokenisedRows
    report: DataReport


def default_cache_directory() -> Path:
    """Return ``$COHORT_CACHE_DIR``, or ``~/.cache/cohort`` where it is not set."""
    configured = os.environ.get("COHORT_CACHE_DIR")
    return Path(configured).expanduser() if configured else Path.home() / ".cache" / "cohort"


def read_cache(directory: Path, *, key: str) -> CachedData | None:
    """Return what is stored under ``key``, or None where there is nothing or it is damaged."""
    path = _file(directory, key)
    try:
        # opened here, since np.load leaves a damaged file open
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
            texts = json.loads(arrays["texts"].tobytes().decode())
            data = CachedData(
                train=_rows(arrays, texts=texts, split="train"),
                validation=_rows(arrays, texts=texts, split="validation"),
                report=DataReport.from_json(texts["report"]),
            )
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError):
        return None
    # the newest files survive pruning; a read-only directory is never pruned
    with suppress(OSError):
        os.utime(path)
    return data if texts.get("key") == key else None


def write_cache(directory: Path, *, key: str, data: CachedData) -> None:
    """Store ``data`` under ``key`` and remove the oldest files beyond a fixed number.

    Raises:
        OSError: the directory cannot be written.
        StorageFullError: no space is left for it.
    """
    texts = {
        "key": key,
        "report": data.report.to_json(),
        "train": _text_columns(data.train),
        "validation": _text_columns(data.validation),
    }
    arrays: dict[str, Any] = {
        "texts": np.frombuffer(json.dumps(texts).encode(), dtype=np.uint8),
        **_arrays(data.train, split="train"),
        **_arrays(data.validation, split="validation"),
    }
    path = _file(directory, key)
    with atomic_file(path) as partial, partial.open("wb") as stream:
        np.savez(stream, **arrays)
    for old in sorted(path.parent.glob("*.npz"), key=_modified, reverse=True)[_MOST_FILES:]:
        old.unlink(missing_ok=True)


def _file(directory: Path, key: str) -> Path:
    return directory / "tokenised" / f"{key}.npz"


def _modified(path: Path) -> float:
    # another process may prune at the same time
    return path.stat().st_mtime if path.exists() else 0.0


def _text_columns(rows: TokenisedRows) -> dict[str, Any]:
    return {
        "prompts": rows.prompts,
        "references": rows.references,
        "sources": rows.sources,
        "fingerprint": rows.fingerprint,
    }


def _arrays(rows: TokenisedRows, *, split: str) -> dict[str, NDArray[Any]]:
    return {f"{split}_tokens": rows.tokens_T, f"{split}_trained": rows.trained_T, f"{split}_offsets": rows.offsets}


def _rows(arrays: Any, *, texts: dict[str, Any], split: str) -> TokenisedRows:
    columns = texts[split]
    rows = TokenisedRows(
        tokens_T=arrays[f"{split}_tokens"],
        trained_T=arrays[f"{split}_trained"],
        offsets=arrays[f"{split}_offsets"],
        prompts=tuple(columns["prompts"]),
        references=tuple(columns["references"]),
        sources=tuple(columns["sources"]),
        fingerprint=columns["fingerprint"],
    )
    if not len(rows) == len(rows.prompts) == len(rows.references) == len(rows.sources):
        raise ValueError("the columns of a cache file have different lengths")
    return rows
