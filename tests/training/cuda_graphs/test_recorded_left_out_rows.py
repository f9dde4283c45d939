"""Recorded passes leave out the rows that launched ones do, to the same bits; what is recorded is run in Python."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from cohort.data.packing import lay_out
from cohort.training.backward_start import seeded
from cohort.training.cuda_graphs.captured_pass import CapturedPass
from cohort.training.cuda_graphs.pass_shape import PassShape
from cohort.training.cuda_graphs.recorded_shapes import GraphKind, rounded_up
from tests.training.left_out_passes import (
    DIVISORS,
    DROPOUTS,
    PACK,
    bank_of,
    entries_of,
    grouped_in_python,
    launched,
    opened,
)

pytest.importorskip("triton")


@pytest.fixture(autouse=True)
def _with_triton(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with grouped_in_python(monkeypatch):
        yield


@pytest.mark.parametrize("kind", [GraphKind.TERMS, GraphKind.DROPPED_SUMS], ids=["plain", "dropped"])
def test_what_is_recorded_has_the_bits_of_a_launched_pass(tmp_path: Path, kind: GraphKind) -> None:
    """With rows of filler, filled twice."""
    decoder = opened(tmp_path)
    bank = bank_of(decoder, is_exact=True, dropouts=DROPOUTS if kind.drops else (0.0,) * 4)
    filled = [entries_of(samples, drops=kind.drops) for samples in (PACK, PACK[2:5])]
    shape = rounded_up(PassShape.of(filled[0]), padded=False, exact=True)
    assert shape.num_trained < shape.num_rows
    slots = bank.slot_table()
    graph = CapturedPass(shape, decoder=decoder, bank=bank, slots=slots, kind=kind)
    for entries in filled:
        present = {entry.slot: DIVISORS[entry.slot] for entry in entries}
        bank.grads_RD.fill_(float("nan"))
        expected = launched(decoder, bank, entries, fresh_slots=tuple(present))
        expected_RD = bank.grads_RD.nan_to_num(nan=-1.0)
        bank.grads_RD.fill_(float("nan"))
        stream = lay_out(entries, num_slots=4, num_rows=shape.num_rows)
        graph.stage(stream, slots=slots, divisors=present, fresh_slots=tuple(present))
        # weights that follow from losses come between both halves, in the same tensor
        losses_T = graph._forward()
        seeded(losses_T, graph._tensors.weights_T).backward()
        num_used = sum(len(entry.sample.tokens) for entry in entries)
        assert torch.equal(losses_T[:num_used], expected[:num_used])
        assert not losses_T[num_used:].any()
        assert torch.equal(bank.grads_RD.nan_to_num(nan=-1.0), expected_RD)


def test_a_pass_of_filler_changes_nothing(tmp_path: Path) -> None:
    decoder = opened(tmp_path)
    bank = bank_of(decoder, is_exact=True)
    shape = PassShape(num_rows=64, num_sequences=2, length=64, num_trained=16)
    CapturedPass(shape, decoder=decoder, bank=bank, slots=bank.slot_table(), kind=GraphKind.SUMS).launch()
    assert not bank.grads_RD.any()


def test_what_is_recorded_measures_the_losses_of_a_launched_pass(tmp_path: Path) -> None:
    decoder = opened(tmp_path)
    bank, entries = bank_of(decoder, is_exact=True, dropouts=DROPOUTS), entries_of()
    shape = rounded_up(PassShape.of(entries), padded=False, exact=True)
    slots = bank.slot_table()
    graph = CapturedPass(shape, decoder=decoder, bank=bank, slots=slots, kind=GraphKind.MEASURES)
    graph.stage(lay_out(entries, num_slots=4, num_rows=shape.num_rows), slots=slots, divisors=None, fresh_slots=())
    losses_T = graph._forward()
    assert not losses_T.requires_grad
    expected = launched(decoder, bank, entries)
    num_used = sum(len(entry.sample.tokens) for entry in entries)
    assert torch.equal(losses_T[:num_used], expected[:num_used])
