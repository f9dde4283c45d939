"""Which tiles and which order of products a packed linear uses on a GPU: a printed rule over measured tables.

The rule: exact match of GPU name, input width and sibling widths in ``measured_tiles.json`` (written by
``benchmarks/kernels/gpu_variants_packed_linear.py``; those for 8192 rows and more by hand, from
``benchmarks/kernels/hopper_product.py``), taking the row with the most stream rows that is not above the stream; else a
row that ``cohort doctor --measure`` left in this machine's cache (:mod:`.own_table`); else the defaults.

Everything that changes the order of a sum is a function of the linear's widths (``shrink_block``, ``output_block``,
``input_rows``, :func:`shares_of`) or of a slot's own rows (:func:`rows_per_chunk`), so a slot's bits do not depend on
how full its pack is: the table's rows for one linear agree in these, and ``da_rows`` is ``input_rows`` where some of
them take the term of dX inside. What changes no bit may follow from the launch: :func:`filling_strip`,
:func:`filling_tiles`, :func:`resident_stages`.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from cohort.kernels.packed_linear.choice.own_table import own_rows, write_own_rows
from cohort.kernels.packed_linear.choice.tile_choice import TermPlace, TileChoice, TileTableError

__all__ = [
    "EXACT_TILES",
    "TermPlace",
    "TileChoice",
    "TileTableError",
    "choose_tiles",
    "keep_measured",
    "describe_augmented",
    "describe_tiles",
    "filling_strip",
    "filling_tiles",
    "fitting_stages",
    "measured_tiles",
    "resident_stages",
    "rows_per_chunk",
    "shares_of",
]

TABLE_PATH = Path(__file__).with_name("measured_tiles.json")
_SHARED = ("tile_rows", "chunk_rows")
_DEFAULTS = TileChoice()
_NARROW = 64
# Exact float32 products are unrolled into single multiplications: with larger tiles they spill and compile for minutes.
EXACT_TILES = TileChoice(
    shrink_block=16,
    shrink_splits=1,
    shrink_stages=2,
    expand_block=32,
    expand_strip=256,
    expand_stages=2,
    ds_block=16,
    ds_splits=1,
    ds_stages=2,
    output_rows=16,
    output_block=32,
    output_stages=2,
    input_rows=16,
    input_block=16,
    input_stages=2,
    da_rows=16,
    da_block=16,
    da_stages=2,
)


@functools.cache
def measured_tiles(path: Path = TABLE_PATH) -> dict[str, list[dict[str, Any]]]:
    """Return the measured rows by GPU name: ``in_features``, ``out_widths``, ``min_rows``, ``choice`` and
    ``measured``.
    """
    if not path.is_file():
        return {}
    table: dict[str, list[dict[str, Any]]] = json.loads(path.read_text(encoding="utf-8"))
    known = {field.name for field in fields(TileChoice)} - set(_SHARED)
    for gpu, rows in table.items():
        for row in rows:
            unknown = set(row["choice"]) - known
            if unknown:
                raise TileTableError(
                    f"{path.name}: {gpu}: unknown tile settings {sorted(unknown)}; known: {sorted(known)}"
                )
    return table


@functools.cache
def choose_tiles(gpu: str, *, in_features: int, out_widths: tuple[int, ...], num_rows: int) -> TileChoice:
    """Return the tiles for a linear of these widths on the GPU called ``gpu``, in a stream of ``num_rows`` rows."""
    row, _ = _row_for(gpu, in_features=in_features, out_widths=out_widths, num_rows=num_rows)
    return _DEFAULTS if row is None else TileChoice(**row["choice"])


def keep_measured(gpu: str, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Keep ``rows`` that were measured on this machine, and choose by them from now on; return their file.

    Raises:
        StorageFullError: the disk is full.
        OSError: the file cannot be written.
    """
    path = write_own_rows(gpu, rows)
    # launches of this process that follow choose again
    choose_tiles.cache_clear()
    return path


def _row_for(
    gpu: str, *, in_features: int, out_widths: tuple[int, ...], num_rows: int
) -> tuple[Mapping[str, Any] | None, str]:
    """Return the row of a table that decides, and where it comes from; None where the defaults do."""
    for origin, rows in (
        (f"measured on {gpu}", measured_tiles().get(gpu, [])),
        ("measured on this machine", own_rows(gpu)),
    ):
        known = [
            row
            for row in rows
            if (row["in_features"], tuple(row["out_widths"])) == (in_features, out_widths)
            and row["min_rows"] <= num_rows
        ]
        if known:
            return max(known, key=lambda row: int(row["min_rows"])), origin
    return None, "defaults (not measured here)"


def shares_of(width: int) -> int:
    """Return how many programs share the columns of a shrink tile that reads ``width`` of them.

    A short stream has few tiles (2048 rows make 32), and a ragged one often a few more than there are multiprocessors:
    shorter programs fill the card and its last wave. At least 2048 columns each, or the sums cost more than they save.
    """
    return 4 if width >= 8192 else 2 if width >= 4096 else 1


def rows_per_chunk(slot_rows: int, *, chunk_rows: int) -> int:
    """Return how many rows of a slot with ``slot_rows`` one program of a weight gradient adds up.

    All of them up to ``chunk_rows``; else the slot makes at most eight chunks of at least half as many: enough programs
    for a slot that has the stream to itself, and never more than eight parts to add up.
    """
    if slot_rows <= chunk_rows:
        return chunk_rows
    return max(chunk_rows // 2, -(-slot_rows // (8 * 16)) * 16)


def filling_strip(strip: int, *, block: int, width: int, num_tiles: int, least_programs: int) -> int:
    """Return ``strip`` columns a program, halved down to ``block`` while there are fewer than ``least_programs``.

    For columns that stand each for itself: no bit depends on the strip.
    """
    while strip > block and -(-width // strip) * num_tiles < least_programs:
        strip //= 2
    return strip


def filling_tiles(tiles: TileChoice, *, width: int, num_chunks: int, least_programs: int) -> TileChoice:
    """Return ``tiles`` with 64 columns for each program of the weight gradients where there would be too few programs.

    64 are the least for the wide matrix instruction. As with strips, no bit depends on it.
    """
    few_outputs, few_inputs, few_da = (
        block > _NARROW and -(-width // block) * num_chunks < least_programs
        for block in (tiles.output_block, tiles.input_block, tiles.da_block)
    )
    if not (few_outputs or few_inputs or few_da):
        return tiles
    return _narrowed(tiles, outputs=few_outputs, inputs=few_inputs, da=few_da)


@functools.cache
def _narrowed(tiles: TileChoice, *, outputs: bool, inputs: bool, da: bool) -> TileChoice:
    if outputs:
        tiles = replace(tiles, output_block=_NARROW, output_warps=4, output_stages=6)
    if inputs:
        tiles = replace(tiles, input_block=_NARROW, input_warps=4, input_stages=4)
    return replace(tiles, da_block=_NARROW, da_warps=4, da_stages=4) if da else tiles


def resident_stages(
    stages: int, *, stage_bytes: int, num_programs: int, num_multiprocessors: int, limit_bytes: int
) -> int:
    """Return ``stages`` where all programs of a launch run at once with them, else 3 of them.

    512 programs over 14336 columns of rank 64 took 74 us with six stages, two programs a multiprocessor at a time, and
    67 with three, all four of them. No bit depends on it; nothing between, so that few kernels are compiled.
    """
    resident = max(1, -(-num_programs // num_multiprocessors))
    # each program takes about 1 KB beyond its stages
    return stages if stages * stage_bytes + 1024 <= limit_bytes // resident else min(stages, 3)


def fitting_stages(stages: int, *, stage_bytes: int, fixed_bytes: int = 0, limit_bytes: int) -> int:
    """Return how many of ``stages`` pipeline stages fit into ``limit_bytes`` of shared memory, at least 1.

    A wide rank, float32 or an older GPU takes a shallower pipeline instead of failing to launch; no bit depends on it.
    """
    return max(1, min(stages, (limit_bytes - fixed_bytes) // stage_bytes))


def describe_tiles(gpu: str, linears: Sequence[tuple[int, tuple[int, ...]]], *, num_rows: int) -> list[str]:
    """Return one line a linear ``(in_features, out_widths)``: measured or default, and what differs from the
    defaults.
    """
    lines = []
    for in_features, out_widths in linears:
        choice = choose_tiles(gpu, in_features=in_features, out_widths=out_widths, num_rows=num_rows)
        changed = {key: value for key, value in asdict(choice).items() if value != getattr(_DEFAULTS, key)}
        _, origin = _row_for(gpu, in_features=in_features, out_widths=out_widths, num_rows=num_rows)
        settings = ", ".join(f"{key}={value}" for key, value in changed.items()) or "all as by default"
        shares = choice.shrink_splits or shares_of(in_features), choice.ds_splits or shares_of(max(out_widths))
        settings += f"; S in {shares[0]} and dS in {shares[1]} shares"
        lines.append(f"{in_features} -> {'+'.join(map(str, out_widths))}: {origin}; {settings}")
    return lines


def describe_augmented(gpu: str) -> str:
    """Return for which linears an augmented product is chosen on the GPU called ``gpu``, and when."""
    lines: dict[str, str] = {}
    for row in sorted(measured_tiles().get(gpu, []), key=lambda row: row["min_rows"]):
        choice = TileChoice(**row["choice"])
        if choice.term_forward is TermPlace.AUGMENTED:
            shape = f"{row['in_features']} -> {'+'.join(map(str, row['out_widths']))}"
            least = max(choice.augmented_rows, row["min_rows"])
            line = f"{shape}: up to {choice.augmented_columns} rank rows, from {least} rows of a stream on"
            lines.setdefault(shape, line)
    return "; ".join(lines.values()) or "for no linear: nothing was measured to be faster with it"
