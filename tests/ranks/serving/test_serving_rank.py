"""What a rank is told, one thing at a time: shards wait on the host, go into slots, and are forgotten."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cohort.adapters.layout import AdapterLayout
from cohort.adapters.spec import AdapterSpec
from cohort.core.errors import InputError
from cohort.models.weights import load_decoder
from cohort.ranks.calls import Call
from cohort.ranks.group_meeting import Rendezvous
from cohort.ranks.rank_process import RankProcess
from cohort.ranks.serving.serving_rank import ServingRank, ServingSetup
from cohort.serving.pass_record import PassRecord, SequencePart
from tests.ranks.tensor.divided_models import save_divided_qwen2


@pytest.fixture
def rank(tmp_path: Path) -> ServingRank:
    save_divided_qwen2(tmp_path)
    decoder = load_decoder(tmp_path)
    rank = ServingRank(lambda: decoder, rank=0, size=1, num_slots=2, num_rank_rows=32)
    rank.load(AdapterLayout(decoder.linears))
    return rank


def test_shards_are_inserted_in_order_and_outlive_what_is_forgotten(rank: ServingRank) -> None:
    width, spec = rank._bank.layout.width, AdapterSpec(r=4, lora_alpha=8.0)
    for number in (5, 6):
        rank.keep(number, spec, torch.full((4, width), float(number)))
        rank.fetch(number)
        rank.insert(number)
    rank.forget([5, 6])
    assert not rank._kept
    assert [float(rank._bank.read(slot).weights[0, 0]) for slot in rank._bank.occupied] == [5.0, 6.0]
    rank.remove(0)
    assert rank._bank.occupied == (1,)
    with pytest.raises(KeyError):
        rank.insert(5)


def test_a_pass_needs_a_cache_and_keeps_nothing(rank: ServingRank) -> None:
    part = SequencePart(number=0, slot=None, start=0, tokens=[3, 4], blocks=[1], is_prompt=True, is_sampled=True)
    record = PassRecord(parts=[part], fresh_blocks=[1])
    with pytest.raises(AssertionError, match="opens the cache"):
        rank.compute(record)
    rank.open_cache(num_blocks=2, max_model_len=32, records_graphs=True)
    rank.compute(record)
    assert rank._computer is not None
    assert rank._computer.graphs is None, "a CPU records none"


def test_a_model_that_is_not_there_is_reported(tmp_path: Path) -> None:
    rendezvous = Rendezvous()
    setup = ServingSetup(
        rank=0,
        size=1,
        rendezvous=rendezvous.address,
        model_directory=str(tmp_path / "nowhere"),
        device="cpu",
        dtype="float32",
        threads=1,
        num_slots=1,
        num_rank_rows=16,
    )
    assert setup.torch_device == torch.device("cpu")
    process = RankProcess(setup, advice="start again")
    try:
        assert process.answer().error is None, "it lives"
        process.ask(Call.of(ServingRank.load, AdapterLayout({})))
        error = process.answer().error
        assert isinstance(error, InputError)
        assert "nowhere" in str(error)
    finally:
        process.close()
        rendezvous.remove()
