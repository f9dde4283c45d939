"""The settings of a packed linear's kernels, and where its LoRA term enters the frozen product."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from cohort.core.errors import CohortError

__all__ = ["TermPlace", "TileChoice", "TileTableError"]


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
