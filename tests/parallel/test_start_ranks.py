"""Ranks that cannot all be started leave none behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cohort.core.errors import RankLostError
from cohort.models.weights import load_decoder
from cohort.parallel import start_ranks as module
from cohort.parallel.commands import RankSetup, Reply
from cohort.parallel.rank_executor import RankExecutor
from cohort.parallel.rank_group import TensorGroup
from cohort.parallel.start_ranks import start_ranks
from cohort.training.executor import ExecutorSettings
from tests.training.small_models import random_rows, save_llama

SIZES = ExecutorSettings(num_slots=1, num_rank_rows=16, token_budget=64, evaluation_token_budget=64)


def setup_of(model: Path, **given: Any) -> RankSetup:
    return RankSetup(
        rank=0,
        model_directory=str(model),
        device="cpu",
        dtype="float32",
        target_linears=load_decoder(model).linears,
        settings=SIZES,
        memory_limit_bytes=None,
        train_rows=random_rows(2),
        threads=1,
        **given,
    )


def test_one_rank_is_this_process(tmp_path: Path) -> None:
    save_llama(tmp_path)
    executor = start_ranks(setup_of(tmp_path), num_ranks=1, decoder=load_decoder(tmp_path))
    assert isinstance(executor, RankExecutor)


def test_a_group_without_its_last_rank_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_llama(tmp_path)
    begun: list[Any] = []
    folders: list[Path] = []

    class Started:
        def __init__(self, setup: RankSetup) -> None:
            folders.append(Path(setup.rendezvous).parent)
            if setup.rank == 1:
                raise RankLostError("rank 1 ended")
            self.rank, self.is_killed = setup.rank, False
            begun.append(self)

        def answer(self) -> Reply:
            return Reply()

        def kill(self) -> None:
            self.is_killed = True

    monkeypatch.setattr(module, "RankProcess", Started)
    with pytest.raises(RankLostError):
        start_ranks(setup_of(tmp_path, group=TensorGroup(size=2)), num_ranks=2, decoder=None)
    assert [rank.is_killed for rank in begun] == [True]
    assert not folders[0].exists()
