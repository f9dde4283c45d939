"""The ladder of sizes for passes that no trial has announced."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import partial

from cohort.training.cuda_graphs.pass_shape import PassShape
from cohort.training.cuda_graphs.recorded_shapes import rounded_up
from cohort.training.cuda_graphs.spare_shape import LEAST_ROWS, RATIO, spare_shape

NEED = PassShape(num_rows=6000, num_sequences=37, length=300, num_trained=2500)
ROUNDED = partial(rounded_up, padded=False, exact=True)


def ladder(recorded: list[PassShape], before: list[PassShape]) -> list[PassShape]:
    found = [*recorded]
    while (shape := spare_shape(found, before=before, rounded_up=ROUNDED, most_rows=1 << 20)) is not None:
        found.append(shape)
        assert len(found) < 40, "it ends"
    return found[len(recorded) :]


def test_every_smaller_pass_of_such_rows_finds_a_size_near_its_own() -> None:
    largest = ROUNDED(replace(NEED, num_rows=8192, num_sequences=51, num_trained=3500))
    found = ladder([largest], [NEED])
    assert [shape.num_rows for shape in found] == sorted({shape.num_rows for shape in found}, reverse=True)
    for num_rows in range(LEAST_ROWS, 8192, 61):
        share = num_rows / NEED.num_rows
        smaller = replace(NEED, num_rows=num_rows, num_sequences=round(37 * share), num_trained=round(2500 * share))
        best = min(shape.num_rows for shape in [largest, *found] if shape.holds(smaller))
        # a size is a multiple of 128 or 256 rows
        assert best <= num_rows / RATIO + 256


def test_what_was_recorded_for_passes_is_part_of_it() -> None:
    largest = ROUNDED(replace(NEED, num_rows=8192))
    whole = ladder([largest], [NEED])
    some = [ROUNDED(replace(NEED, num_rows=rows)) for rows in (6800, 2000, 900)]
    found = ladder([largest, *some], [NEED])
    assert len(found) < len(whole)
    rows = sorted(shape.num_rows for shape in (largest, *some, *found))
    assert all(lower >= RATIO * RATIO * upper - 256 for lower, upper in itertools.pairwise(rows))


def test_without_passes_or_recordings_there_is_none() -> None:
    assert spare_shape([], before=[NEED], rounded_up=ROUNDED, most_rows=9000) is None
    assert spare_shape([NEED], before=[], rounded_up=ROUNDED, most_rows=9000) is None
    assert (
        spare_shape([ROUNDED(replace(NEED, num_rows=200))], before=[NEED], rounded_up=ROUNDED, most_rows=9000) is None
    )


def test_other_rows_need_sizes_of_their_own_and_none_is_larger_than_may_be_recorded() -> None:
    largest = ROUNDED(replace(NEED, num_rows=8192))
    whole = [largest, *ladder([largest], [NEED])]
    longer = replace(NEED, length=900, num_trained=5900)
    shape = spare_shape(whole, before=[longer], rounded_up=ROUNDED, most_rows=8192)
    assert shape is not None
    assert shape.holds(replace(longer, num_rows=round(RATIO * 8192), num_trained=round(RATIO * 8192 * 5900 / 6000)))
    less = spare_shape([largest], before=[NEED], rounded_up=ROUNDED, most_rows=3000)
    assert less is not None
    assert less.num_rows <= 3000
