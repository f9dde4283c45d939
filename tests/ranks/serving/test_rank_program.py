"""The program of a rank says what keeps it from serving, and ends."""

from __future__ import annotations

from pathlib import Path

import torch

from cohort.core.errors import InputError
from cohort.ranks.rank_process import RankProcess
from cohort.ranks.serving.rank_program import ServingRankSetup


def test_a_model_that_is_not_there_is_reported(tmp_path: Path) -> None:
    setup = ServingRankSetup(
        rank=0,
        size=1,
        store=str(tmp_path / "store"),
        model_directory=str(tmp_path / "nowhere"),
        device="cpu",
        dtype="float32",
        threads=1,
        num_slots=1,
        num_rank_rows=16,
    )
    assert setup.torch_device == torch.device("cpu")
    process = RankProcess(setup, program="cohort.ranks.serving.rank_program", advice="start again")
    try:
        assert process.answer().error is None, "it lives"
        error = process.answer().error
        assert isinstance(error, InputError)
        assert "nowhere" in str(error)
    finally:
        process.close()
