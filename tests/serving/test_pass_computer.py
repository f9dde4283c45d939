"""What a pass is computed from: its rows and segments, kept where the next pass has the same sequences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from cohort.adapters.linear import LoraContext
from cohort.kernels.segments import SegmentTable
from cohort.models.decoder import Decoder
from cohort.models.weights import load_decoder
from cohort.serving.decode_inputs import DecodeRow
from cohort.serving.pass_computer import PassComputer
from cohort.serving.pass_record import PassRecord, SequencePart
from cohort.serving.sampler import Scores
from tests.models.fixtures.tiny_checkpoints import save_checkpoint


class Slots:
    """Adapters of nothing; keeps the segments that it was asked for."""

    num_slots = 3

    def __init__(self) -> None:
        self.asked: list[SegmentTable] = []

    def context(self, segments: SegmentTable) -> LoraContext | None:
        self.asked.append(segments)
        return None


class Graphs:
    """Stands in for recorded graphs."""

    def __init__(self) -> None:
        self.rows: list[Sequence[DecodeRow]] = []

    def run(self, rows: Sequence[DecodeRow], lora: LoraContext | None, segments: SegmentTable) -> Scores:
        self.rows.append(rows)
        return Scores.of(torch.zeros(len(rows), 4))


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    return load_decoder(save_checkpoint(tmp_path_factory.mktemp("model"), "Llama", num_hidden_layers=1))


def newest(slots: Sequence[int | None], *, start: int) -> PassRecord:
    parts = [
        SequencePart(
            number=number, slot=slot, start=start, tokens=[5 + number], blocks=[number + 1], is_prompt=False,
            is_sampled=True,
        )
        for number, slot in enumerate(slots)
    ]  # fmt: skip
    return PassRecord(parts=parts)


def test_the_segments_of_the_last_decoding_pass_are_used_again(decoder: Decoder) -> None:
    slots, graphs = Slots(), Graphs()
    computer = PassComputer(decoder, adapters=slots, num_blocks=6, max_model_len=32)
    stands_in: Any = graphs
    computer.graphs = stands_in
    for start in (3, 4):
        assert computer.compute(newest((0, 2, None), start=start)) is not None
    computer.compute(newest((0, 1, None), start=4))
    first, second, third = slots.asked
    assert first is second
    assert (first.num_rows, first.offsets, third.offsets) == (16, (0, 1, 1, 2), (0, 1, 2, 2))
    assert [(row.number, row.start, list(row.tokens)) for row in graphs.rows[1]] == [
        (0, 4, [5]),
        (1, 4, [6]),
        (2, 4, [7]),
    ]


def test_a_pass_in_which_nothing_is_sampled_gives_no_scores(decoder: Decoder) -> None:
    computer = PassComputer(decoder, adapters=Slots(), num_blocks=6, max_model_len=32)
    part = SequencePart(number=0, slot=None, start=0, tokens=[3] * 16, blocks=[1, 2], is_prompt=True, is_sampled=False)
    assert computer.compute(PassRecord(parts=[part], fresh_blocks=[1, 2])) is None
