"""What a pass is computed from: its rows and segments, kept where the next pass has the same sequences."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from cohort.adapters.adapter_state import AdapterState
from cohort.adapters.bank import AdapterBank
from cohort.adapters.layout import AdapterLayout
from cohort.adapters.linear import LoraContext
from cohort.adapters.spec import AdapterSpec
from cohort.kernels.segments import SegmentTable
from cohort.models.decoder import Decoder
from cohort.models.weights import load_decoder
from cohort.serving.decode_inputs import DecodeRow
from cohort.serving.pass_computer import PassComputer
from cohort.serving.pass_record import PassRecord, SequencePart
from cohort.serving.sampler import Scores
from tests.models.fixtures.tiny_checkpoints import save_checkpoint
from tests.serving.served import Served, serve


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


# wide enough that oneDNN and arranged weights multiply; the second has widths that fill no vector, and biases
WIDE = {
    "Llama": {"hidden_size": 192, "intermediate_size": 384, "num_attention_heads": 6, "num_key_value_heads": 2},
    "Qwen2": {"hidden_size": 140, "intermediate_size": 202, "num_attention_heads": 5, "num_key_value_heads": 1},
    "Gemma2": {"hidden_size": 128, "intermediate_size": 200, "num_attention_heads": 4, "head_dim": 32},
}


@pytest.fixture(scope="module", params=WIDE)
def wide(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Served:
    return serve(tmp_path_factory.mktemp("wide"), request.param, **WIDE[request.param])


@pytest.fixture
def threads_as_before() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@dataclass
class BankSlots:
    """The adapters of a bank."""

    served: Served

    @property
    def num_slots(self) -> int:
        return self.served.bank.num_slots

    def context(self, segments: SegmentTable) -> LoraContext | None:
        return self.served.bank.context(segments)


PROMPT = 9


def parts_of(numbers: Sequence[int], *, is_prompt: bool) -> PassRecord:
    """Return a pass of prompts, or of the token behind each; every fourth sequence has no adapter."""
    ordered = sorted(numbers, key=lambda number: (3 if number % 4 == 3 else number % 4, number))
    parts = [
        SequencePart(
            number=number,
            slot=None if number % 4 == 3 else number % 4,
            start=0 if is_prompt else PROMPT,
            tokens=[12 + (number + place) % 50 for place in range(PROMPT)] if is_prompt else [12 + number % 50],
            blocks=[number + 1],
            is_prompt=is_prompt,
            is_sampled=True,
        )
        for number in ordered
    ]
    fresh = [number + 1 for number in ordered] if is_prompt else []
    return PassRecord(parts=parts, fresh_blocks=fresh)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.usefixtures("threads_as_before")
def test_logits_have_the_same_bits_in_a_pass_of_any_number_of_rows(wide: Served, threads: int) -> None:
    torch.set_num_threads(threads)
    drawn, count = random.Random(0), 40
    computer = PassComputer(wide.decoder, adapters=BankSlots(wide), num_blocks=count, max_model_len=32)
    computer.compute(parts_of(range(count), is_prompt=True))

    def logits(numbers: Sequence[int]) -> dict[int, torch.Tensor]:
        record = parts_of(numbers, is_prompt=False)
        scores = computer.compute(record)
        assert scores is not None
        return {part.number: row.clone() for part, row in zip(record.parts, scores.logits_BV, strict=True)}

    together = logits(range(count))
    for size in (1, 1, 1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 15, 16, 17, 20, 24, 25, 31, 32, 33):
        for number, row in logits(drawn.sample(range(count), size)).items():
            assert torch.equal(row, together[number]), (size, number)


def test_a_prompt_beside_it_changes_no_bit_of_a_sequence_that_decodes(wide: Served) -> None:
    computer = PassComputer(wide.decoder, adapters=BankSlots(wide), num_blocks=8, max_model_len=32)
    computer.compute(parts_of(range(4), is_prompt=True))
    for number in range(4):
        alone = computer.compute(parts_of([number], is_prompt=False))
        assert alone is not None
        expected = alone.logits_BV[0].clone()
        prompt = parts_of([number + 4], is_prompt=True)
        beside = PassRecord(
            parts=[*parts_of([number], is_prompt=False).parts, *prompt.parts], fresh_blocks=prompt.fresh_blocks
        )
        both = computer.compute(beside)
        assert both is not None
        assert torch.equal(both.logits_BV[0], expected)


def test_logits_have_the_same_bits_where_terms_of_one_rank_are_stacked(wide: Served) -> None:
    layout = AdapterLayout(wide.decoder.linears)
    bank = AdapterBank(layout, num_slots=3, num_rank_rows=48)
    for seed in range(3):
        weights = torch.randn(8, layout.width, generator=torch.Generator().manual_seed(seed)) * 0.1
        bank.insert(AdapterSpec(r=8, lora_alpha=16), AdapterState(weights=weights))
    slots = BankSlots(replace(wide, bank=bank))
    computer = PassComputer(wide.decoder, adapters=slots, num_blocks=24, max_model_len=32)
    computer.compute(parts_of(range(24), is_prompt=True))

    def logits(numbers: Sequence[int]) -> dict[int, torch.Tensor]:
        record = parts_of(numbers, is_prompt=False)
        # factors are stacked by the second pass that asks for the same ones
        found = [computer.compute(record) for _ in range(3)]
        rows = [scores.logits_BV.clone() for scores in found if scores is not None]
        assert torch.equal(rows[0], rows[1])
        assert torch.equal(rows[0], rows[2])
        return dict(zip((part.number for part in record.parts), rows[0], strict=True))

    alone = {number: logits([number])[number] for number in range(24)}
    for numbers in (range(24), (0, 1), (0, 1, 2), (0, 4, 1, 5, 2, 6), (0, 4, 8, 1, 2, 3), (0, 4, 8, 12, 16, 1, 5, 2)):
        for number, row in logits(numbers).items():
            assert torch.equal(row, alone[number]), (numbers, number)
