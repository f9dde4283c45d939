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

from cohort.core.durable_files import atomic_file, remove_old_leftovers
from cohort.data.report import DataReport
from cohort.data.tokenised import TokenisedRows

__all__ = ["CachedData", "read_cache", "write_cache"]

_MOST_FILES = 64
# the fields of the rows: arrays, by their name in the file, and lists of texts
_ARRAYS = {"tokens": "tokens_T", "trained": "trained_T", "offsets": "offsets"}
# those of rows that are compared; files of rows that are not may lack them
_COMPARED = {"starts": "answer_starts", "labels": "labels"}
_TEXTS = ("prompts", "references", "sources")
_ALL = "all_validation"


@dataclass(frozen=True, kw_only=True)
class CachedData:
    """What one cache file holds.

    Attributes:
        validation: The validation rows that evaluations of trials choose from.
        test: The rows that the winner is measured on at the end; None where the task names none.
        all_validation: Every validation row, for the comparison at the end; the same object where that is all of them.
    """

    train: TokenisedRows
    validation: TokenisedRows
    all_validation: TokenisedRows
    test: TokenisedRows | None = None
    report: DataReport


def read_cache(directory: Path, *, key: str) -> CachedData | None:
    """Return what is stored under ``key``, or None where there is nothing or it is damaged."""
    path = _file(directory, key)
    try:
        # opened here, since np.load leaves a damaged file open
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
            texts = json.loads(arrays["texts"].tobytes().decode())
            validation = _rows(arrays, texts=texts, split="validation")
            data = CachedData(
                train=_rows(arrays, texts=texts, split="train"),
                validation=validation,
                all_validation=_rows(arrays, texts=texts, split=_ALL) if _ALL in texts else validation,
                test=_rows(arrays, texts=texts, split="test") if "test" in texts else None,
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
    texts: dict[str, Any] = {"key": key, "report": data.report.to_json()}
    arrays: dict[str, Any] = {}
    splits = {"train": data.train, "validation": data.validation}
    if data.all_validation is not data.validation:
        splits[_ALL] = data.all_validation
    if data.test is not None:
        splits["test"] = data.test
    for split, rows in splits.items():
        texts[split] = {name: getattr(rows, name) for name in (*_TEXTS, "columns", "fingerprint")}
        arrays |= {f"{split}_{name}": getattr(rows, field) for name, field in {**_ARRAYS, **_COMPARED}.items()}
    arrays["texts"] = np.frombuffer(json.dumps(texts).encode(), dtype=np.uint8)
    path = _file(directory, key)
    # no run waits for the disk, which may have gigabytes to take first: a part of a file is read as none
    with atomic_file(path, is_flushed=False) as partial, partial.open("wb") as stream:
        np.savez(stream, **arrays)
    remove_old_leftovers(path.parent)
    for old in sorted(path.parent.glob("*.npz"), key=_modified, reverse=True)[_MOST_FILES:]:
        old.unlink(missing_ok=True)


def _file(directory: Path, key: str) -> Path:
    return directory / "tokenised" / f"{key}.npz"


def _modified(path: Path) -> float:
    # another process may prune at the same time
    return path.stat().st_mtime if path.exists() else 0.0


def _rows(arrays: Any, *, texts: dict[str, Any], split: str) -> TokenisedRows:
    columns: dict[str, Any] = {name: tuple(texts[split][name]) for name in _TEXTS}
    numbers: dict[str, Any] = {field: arrays[f"{split}_{name}"] for name, field in _ARRAYS.items()}
    numbers |= {field: arrays[f"{split}_{name}"] for name, field in _COMPARED.items() if f"{split}_{name}" in arrays}
    values = tuple(texts[split]["columns"])
    rows = TokenisedRows(**numbers, **columns, fingerprint=texts[split]["fingerprint"], columns=values)
    if any(len(column) != len(rows) for column in columns.values()) or len(values) not in (0, len(rows)):
        raise ValueError("the columns of a cache file have different lengths")
    return rows
