"""Which tiles and which order of products a packed linear uses on a GPU: a printed rule over measured tables.

The rule: exact match of GPU name, input width and sibling widths in ``measured_tiles.json`` (written by
``benchmarks/kernels/gpu_variants_packed_linear.py``; those for 8192 rows and more by hand, from
``benchmarks/kernels/hopper_product.py``), taking the row with the most stream rows that is not above the stream; else
the defaults below.

Everything that changes the order of a sum is a function of the linear's widths (``shrink_block``, ``output_block``,
``input_rows``, :func:`shares_of`) or of a slot's own rows (:func:`rows_per_chunk`), so a slot's bits do not depend on
how full its pack is: the table's rows for one linear agree in these, and ``da_rows`` is ``input_rows`` where some of
them take the term of dX inside. What changes no bit may follow from the launch: :func:`filling_strip`,
:func:`filling_tiles`, :func:`resident_stages`.
"""

from __future__ import annotations

import enum
import functools
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from cohort.core.errors import CohortError

__all__ = [
    "EXACT_TILES",
    "TermPlace",
    "TileChoice",
    "TileTableError",
    "choose_tiles",
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


class TileTableError(CohortError):
    """The measured table has a row that is no :class:`TileChoice`."""


class TermPlace(enum.StrEnum):
    """Where the LoRA term enters an output of the frozen product. What a linear cannot do falls to ``BEFORE``, and that
    to ``AFTER``.
    """

    INSIDE = "inside"
    """In the accumulators of a product of our own: Hopper, plain 16-bit weights, ranks to 128, no dropout in dX, and a
    stream whose tiles fill the card (:mod:`~cohort.kernels.packed_linear.hopper.launch`)."""
    AUGMENTED = "augmented"
    """As further columns of X and W, in Y alone: see
    :mod:`~cohort.kernels.packed_linear.choice.augmented` for what it asks of both."""
    BEFORE = "before"
    """Written first, then the frozen product accumulates onto it."""
    AFTER = "after"
    """Added to what the frozen product wrote."""


@dataclass(frozen=True, kw_only=True)
class TileChoice:
    """Tiles of the grouped kernels. Rows and columns are elements, warps and stages as Triton means them.

    Attributes:
        tile_rows: Rows of a shrink and expand tile, the same for every linear of a step.
        chunk_rows: Rows whose weight gradients one program adds up where a slot has no more, see
            :func:`rows_per_chunk`; the same for every linear of a step.
        shrink_block: Columns of X a shrink step reads.
        shrink_splits: Programs that share the columns of one shrink tile; None as :func:`shares_of` says.
        shrink_warps, shrink_stages: How the shrink is launched.
        ds_apart: Compute dS by a shrink of its own: dY is read twice, but no float32 partial sums are written.
        ds_block, ds_splits, ds_warps, ds_stages: How that shrink is launched.
        expand_block, expand_strip: Output columns that an expand step writes, and the most that one program writes.
        expand_warps, expand_stages: How the expand is launched.
        output_rows, output_block: Rows a step and columns a program of the kernel over dY reads.
        output_warps, output_stages: How that kernel is launched.
        input_rows, input_block: Rows a step and columns a program of the kernel over X reads that writes dX as well.
        input_warps, input_stages: How that kernel is launched.
        da_rows, da_block, da_warps, da_stages: Of the same kernel where it writes dA alone: the term of dX is inside a
            product, or no dX is asked for.
        term_forward, term_backward: Where the LoRA term enters Y and dX; dX has no augmented form.
        term_forward_otherwise: Where it enters Y when an augmented product is asked for and cannot be.
        augmented_columns: Most rank rows of a bank, those between its adapters included, that an augmented product
            takes, and columns that its weight then gets to spare.
        augmented_rows: Fewest rows of a stream for it.
    """

    tile_rows: int = 64
    chunk_rows: int = 1024
    shrink_block: int = 64
    shrink_splits: int | None = None
    shrink_warps: int = 4
    shrink_stages: int = 6
    ds_apart: bool = True
    ds_block: int = 64
    ds_splits: int | None = None
    ds_warps: int = 4
    ds_stages: int = 6
    expand_block: int = 128
    expand_strip: int = 1024
    expand_warps: int = 4
    expand_stages: int = 3
    output_rows: int = 64
    output_block: int = 128
    output_warps: int = 4
    output_stages: int = 4
    input_rows: int = 64
    input_block: int = 128
    input_warps: int = 4
    input_stages: int = 3
    da_rows: int = 64
    da_block: int = 128
    da_warps: int = 4
    da_stages: int = 4
    term_forward: TermPlace = TermPlace.BEFORE
    term_forward_otherwise: TermPlace = TermPlace.BEFORE
    term_backward: TermPlace = TermPlace.BEFORE
    augmented_columns: int = 64
    augmented_rows: int = 2048

    def __post_init__(self) -> None:
        for name in ("term_forward", "term_forward_otherwise", "term_backward"):
            object.__setattr__(self, name, TermPlace(getattr(self, name)))
        if self.term_backward is TermPlace.AUGMENTED:
            raise TileTableError("term_backward must be inside, before or after: dX has no augmented form")
        if self.term_forward_otherwise is TermPlace.AUGMENTED:
            raise TileTableError("term_forward_otherwise must be inside, before or after: it is for where none can be")
        if self.augmented_columns < 16 or self.augmented_columns % 16:
            raise TileTableError(f"augmented_columns must be a multiple of 16, got {self.augmented_columns}")
        for name in (
            "tile_rows",
            "shrink_block",
            "ds_block",
            "expand_block",
            "expand_strip",
            "output_rows",
            "output_block",
            "input_rows",
            "input_block",
            "da_rows",
            "da_block",
        ):
            value = getattr(self, name)
            if value < 16 or value & (value - 1):
                raise TileTableError(f"{name} must be a power of two of at least 16, got {value}")
        if self.chunk_rows < 16 or self.chunk_rows % 16:
            raise TileTableError(f"chunk_rows must be a multiple of 16, got {self.chunk_rows}")

    @property
    def place_in_y(self) -> TermPlace:
        """Where the term enters Y when no augmented product is made."""
        return self.term_forward_otherwise if self.term_forward is TermPlace.AUGMENTED else self.term_forward


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
    best: dict[str, Any] | None = None
    for row in measured_tiles().get(gpu, []):
        if row["in_features"] != in_features or tuple(row["out_widths"]) != out_widths or row["min_rows"] > num_rows:
            continue
        if best is None or row["min_rows"] > best["min_rows"]:
            best = row
    return _DEFAULTS if best is None else TileChoice(**best["choice"])


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
        origin = f"measured on {gpu}" if choice is not _DEFAULTS else "defaults (not measured here)"
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
