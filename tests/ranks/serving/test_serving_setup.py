"""The program of a rank says what keeps it from serving, and ends."""

from __future__ import annotations

from pathlib import Path

import torch

from cohort.adapters.layout import AdapterLayout
from cohort.core.errors import InputError
from cohort.ranks.calls import Call
from cohort.ranks.group_meeting import Rendezvous
from cohort.ranks.rank_process import RankProcess
from cohort.ranks.serving.serving_rank import ServingRank
from cohort.ranks.serving.serving_setup import ServingSetup


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
