"""Ranks that cannot all be started leave none behind."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cohort.core.errors import RankLostError
from cohort.models.weights import load_decoder
from cohort.ranks.calls import Reply
from cohort.ranks.group_meeting import is_on_one_host
from cohort.ranks.launch import start_ranks as module
from cohort.ranks.launch.launch_place import LaunchPlace
from cohort.ranks.launch.start_ranks import start_ranks
from cohort.ranks.local_executor import LocalExecutor
from cohort.ranks.rank_group import TensorGroup
from cohort.ranks.training_setup import TrainingSetup
from cohort.training.executor_settings import ExecutorSettings
from tests.training.small_models import random_rows, save_llama

SIZES = ExecutorSettings(num_slots=1, num_rank_rows=16, token_budget=64, evaluation_token_budget=64)


def setup_of(model: Path, **given: Any) -> TrainingSetup:
    return TrainingSetup(
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
    assert isinstance(executor, LocalExecutor)


def test_a_group_without_its_last_rank_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_llama(tmp_path)
    begun: list[Any] = []
    folders: list[Path] = []

    class Started:
        def __init__(self, setup: TrainingSetup) -> None:
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


@pytest.mark.parametrize("num_hosts", [1, 2])
def test_a_group_of_a_launch_has_a_process_of_its_own_for_rank_0(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_hosts: int
) -> None:
    """The process that commands computes nothing, so the GPU of rank 0 gets another one; the others are there."""
    save_llama(tmp_path)
    started: list[TrainingSetup] = []
    launched: list[TrainingSetup] = []
    made: list[dict[str, Any]] = []

    def begin(found: list[TrainingSetup]) -> Any:
        def rank(setup: TrainingSetup) -> TrainingSetup:
            found.append(setup)
            return setup

        return rank

    def group(ranks: list[TrainingSetup], plan: object, **given: Any) -> str:
        assert [setup.rank for setup in ranks] == [0, 1, 2]
        made.append(given)
        given["rendezvous"].remove()
        return "the group"

    monkeypatch.setattr(module, "RankProcess", begin(started))
    monkeypatch.setattr(module, "GroupedExecutor", group)
    monkeypatch.setattr(TrainingSetup, "kill", None, raising=False)
    place = LaunchPlace(rank=0, num_ranks=3, local_rank=2, first_host="127.0.0.1")
    ranks: Any = SimpleNamespace(place=place, num_hosts=num_hosts, begin=begin(launched))
    setup = setup_of(tmp_path, group=TensorGroup(size=3))
    executor: Any = start_ranks(setup, num_ranks=3, decoder=None, launched=ranks)
    assert executor == "the group"
    assert [(setup.rank, setup.gpu) for setup in started] == [(0, 2)]
    assert [setup.rank for setup in launched] == [1, 2]
    (address,) = {setup.rendezvous for setup in (*started, *launched)}
    assert is_on_one_host(address) == (num_hosts == 1)
