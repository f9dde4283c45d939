"""Settings that no kernel could be launched with are refused when a table is read."""

from __future__ import annotations

import pytest

from cohort.kernels.packed_linear.choice.tile_choice import TermPlace, TileChoice, TileTableError


def test_settings_that_cannot_be_are_refused() -> None:
    with pytest.raises(TileTableError, match="dX has no augmented form"):
        TileChoice(term_backward=TermPlace.AUGMENTED)
    with pytest.raises(TileTableError, match="augmented_columns must be a multiple of 16, got 20"):
        TileChoice(augmented_columns=20)
    with pytest.raises(TileTableError, match="expand_block must be a power of two of at least 16, got 96"):
        TileChoice(expand_block=96)


def test_an_augmented_product_that_cannot_be_made_leaves_the_term_where_the_tiles_say() -> None:
    inside, augmented, after = TermPlace.INSIDE, TermPlace.AUGMENTED, TermPlace.AFTER
    assert TileChoice(term_forward=augmented, term_forward_otherwise=inside).place_in_y is inside
    assert TileChoice(term_forward=after, term_forward_otherwise=inside).place_in_y is after
