"""What the grouped kernels are told: which slots own a tile of the stream, the measured tiles, what runs where."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from cohort.kernels.packed_linear.choice.tiles import TermPlace, TileChoice, measured_tiles
from cohort.kernels.packed_linear.launch import product as product_launch
from cohort.kernels.packed_linear.launch.tables import OWNER_WIDTH, PRODUCT_ROWS
from tests.kernels.packed_linear_cases import make_case

# what decides the order in which a slot's S, dS, dA or dB is added up
ORDER_OF_SUMS = (
    "shrink_block", "shrink_splits", "ds_apart", "ds_block", "ds_splits", "output_rows", "output_block", "input_rows",
)  # fmt: skip


@pytest.mark.parametrize(
    ("lengths", "ranks", "extra"),
    [
        ([128, 256, 5], [16, 32, 8], 0),
        ([20, 0, 1, 117, 9, 300], [8, 3, 0, 20, 64, 40], 13),
        ([0, 0], [8, 4], 200),
        ([7] * 30, [8, 24] * 15, 300),
    ],
)
def test_a_tile_names_the_slots_with_rows_in_it_and_what_the_first_of_them_says(
    lengths: list[int], ranks: list[int], extra: int
) -> None:
    case = make_case("cpu", lengths=lengths, ranks=ranks, extra=extra)
    rank_pass = case.tables().passes[0]
    slots, owners = rank_pass.slots.numpy(), rank_pass.owners.numpy()
    owning = [slot for slot in range(len(lengths)) if lengths[slot] and ranks[slot]]
    assert slots[0, 0] == len(owning)
    assert owners.shape == (-(-(sum(lengths) + extra) // PRODUCT_ROWS), OWNER_WIDTH)
    for tile, owner in enumerate(owners):
        start, stop = tile * PRODUCT_ROWS, (tile + 1) * PRODUCT_ROWS
        rows = [case.segments.rows(slot) for slot in owning]
        here = [index for index, own in enumerate(rows) if own.start < stop and own.stop > start]
        if not here:
            assert not owner.any()
            continue
        assert list(range(*owner[:2])) == here
        slot = owning[here[0]]
        scale = np.array([case.slots.scales[slot]], dtype=np.float32).view(np.int32)[0]
        own = case.segments.rows(slot)
        assert list(owner[2:]) == [own.start, own.stop, case.slots.row_starts[slot], ranks[slot], scale, 0]
        assert list(owner[2:7]) == list(slots[1 + here[0], :5])


@pytest.mark.parametrize("gpu", sorted(measured_tiles()))
def test_a_slots_bits_do_not_depend_on_which_row_of_the_table_its_stream_takes(gpu: str) -> None:
    linears: dict[tuple[object, ...], list[TileChoice]] = {}
    for row in measured_tiles()[gpu]:
        linears.setdefault((row["in_features"], *row["out_widths"]), []).append(TileChoice(**row["choice"]))
    for linear, choices in linears.items():
        orders = {tuple(asdict(choice)[name] for name in ORDER_OF_SUMS) for choice in choices}
        assert len(orders) == 1, linear
        if any(choice.term_backward is TermPlace.INSIDE for choice in choices):
            # dA is written beside dX in shorter streams, alone in longer ones
            assert all(choice.da_rows == choice.input_rows for choice in choices), linear


@pytest.mark.parametrize(
    ("hopper", "engine", "version", "words"),
    [
        (True, True, "3.6.0", "Hopper's own, where"),
        (True, True, "3.9.0", "none: Hopper's own has run with Triton 3.6.* alone, this is 3.9.0"),
        (False, True, "3.9.0", "the portable one"),
        (False, False, "3.6.0", "none: it needs tile descriptors"),
    ],
)
def test_which_product_takes_the_term_inside_is_said(
    monkeypatch: pytest.MonkeyPatch, hopper: bool, engine: bool, version: str, words: str
) -> None:
    monkeypatch.setattr(product_launch, "is_hopper", lambda device: hopper)
    monkeypatch.setattr(product_launch, "has_tensor_memory_engine", lambda device: engine)
    monkeypatch.setattr("triton.__version__", version)
    assert words in product_launch.describe_inside(torch.device("cuda"))


def test_an_augmented_product_that_cannot_be_made_leaves_the_term_where_the_tiles_say() -> None:
    inside, augmented, after = TermPlace.INSIDE, TermPlace.AUGMENTED, TermPlace.AFTER
    assert TileChoice(term_forward=augmented, term_forward_otherwise=inside).place_in_y is inside
    assert TileChoice(term_forward=after, term_forward_otherwise=inside).place_in_y is after
