"""The table of tiles that was measured on this machine: for GPUs and linears that the table of the package lacks.

``cohort doctor --measure`` writes it, one file for each GPU. Its settings are those that change no bit of a result, so
a run may find it or not, and a resumed run may find another.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from cohort.core.cache_directory import default_cache_directory
from cohort.core.durable_files import write_text
from cohort.kernels.packed_linear.choice.tile_choice import TileChoice, TileTableError

__all__ = ["FREE_SETTINGS", "own_rows", "read_own_table", "table_path", "write_own_rows"]

FREE_SETTINGS = (
    *("shrink_warps", "shrink_stages", "ds_warps", "ds_stages"),
    *("expand_block", "expand_strip", "expand_warps", "expand_stages"),
    *("output_block", "output_warps", "output_stages", "input_block", "input_warps", "input_stages"),
    *("da_block", "da_warps", "da_stages"),
)
_ROW_KEYS = {"in_features", "out_widths", "min_rows", "choice", "measured"}


def table_path(gpu: str) -> Path:
    """Return where the table of the GPU called ``gpu`` is kept."""
    name = re.sub(r"[^a-z0-9]+", "-", gpu.lower()).strip("-")
    # two names may be one without their other characters
    return default_cache_directory() / "tiles" / f"{name}-{hashlib.sha256(gpu.encode()).hexdigest()[:8]}.json"


def read_own_table(gpu: str) -> list[dict[str, Any]]:
    """Return the rows that were measured on this machine for the GPU called ``gpu``; none without a file.

    Raises:
        TileTableError: the file is damaged, or of a version with other settings.
    """
    path = table_path(gpu)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise TileTableError(f"{path} is damaged ({error})") from error
    if not isinstance(content, dict) or content.get("gpu") != gpu or not isinstance(content.get("rows"), list):
        raise TileTableError(f"{path} is no table of tiles for {gpu}")
    for row in content["rows"]:
        _require_row(row, path)
    rows: list[dict[str, Any]] = content["rows"]
    return rows


@functools.cache
def _rows_at(gpu: str, path: Path) -> tuple[Mapping[str, Any], ...]:
    del path
    try:
        return tuple(read_own_table(gpu))
    except TileTableError:
        # `cohort doctor` says so; the defaults give the same numbers
        return ()


def own_rows(gpu: str) -> tuple[Mapping[str, Any], ...]:
    """Return the rows for the GPU called ``gpu``, read once; none where the file is damaged."""
    return _rows_at(gpu, table_path(gpu))


def write_own_rows(gpu: str, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Keep ``rows`` next to those of other linears; return the file.

    Raises:
        StorageFullError: the disk is full.
        OSError: the file cannot be written.
    """
    try:
        kept = read_own_table(gpu)
    except TileTableError:
        kept = []
    shapes = {_shape(row) for row in rows}
    path = table_path(gpu)
    content = {"gpu": gpu, "rows": [*(row for row in kept if _shape(row) not in shapes), *rows]}
    write_text(path, json.dumps(content, indent=1) + "\n")
    _rows_at.cache_clear()
    return path


def _shape(row: Mapping[str, Any]) -> tuple[int, tuple[int, ...]]:
    return row["in_features"], tuple(row["out_widths"])


def _require_row(row: object, path: Path) -> None:
    if not isinstance(row, dict) or set(row) != _ROW_KEYS or not isinstance(row["choice"], dict):
        raise TileTableError(f"{path}: a row has other keys than {', '.join(sorted(_ROW_KEYS))}")
    widths, sizes = row["out_widths"], (row["in_features"], row["min_rows"])
    if not isinstance(widths, list) or not all(isinstance(size, int) for size in (*sizes, *widths)):
        raise TileTableError(f"{path}: a row's widths are no numbers")
    if others := sorted(set(row["choice"]) - set(FREE_SETTINGS)):
        raise TileTableError(f"{path}: settings that change results, or that are unknown: {', '.join(others)}")
    if not all(isinstance(value, int) and value > 0 for value in row["choice"].values()):
        raise TileTableError(f"{path}: a setting is no positive number")
    TileChoice(**row["choice"])


assert set(FREE_SETTINGS) <= {field.name for field in fields(TileChoice)}, "they are settings of the kernels"
