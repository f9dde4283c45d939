"""Everything before the first step: what is prepared, and what it says meanwhile."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from cohort.core.clock import SystemClock
from cohort.prepare.preparation import Preparation, prepare
from cohort.ranks.launch import start_ranks
from cohort.ranks.training_setup import TrainingSetup
from tests.end_to_end.tiny_tasks import tiny_task, write_inputs


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_inputs(tmp_path_factory.mktemp("preparation"))


@pytest.fixture(scope="module")
def prepared(folder: Path) -> Preparation:
    return prepare(tiny_task(folder), clock=SystemClock())


def test_a_prepared_task_fits_its_own_sizes(prepared: Preparation) -> None:
    assert len(prepared.proposals.first) == 6
    assert prepared.sizes.executor.num_slots == 6
    assert len(prepared.evaluation_rows) <= 4
    assert prepared.inputs.layout.linears.keys() == set(prepared.inputs.target_modules)
    assert prepared.facts.sizes.num_slots == 6
    assert prepared.facts.inputs.num_train_rows == len(prepared.inputs.data.train)
    executor = prepared.build_executor()
    assert executor.bank_bytes > 0


def test_ranks_end_with_an_executor_that_cannot_be_built(
    prepared: Preparation, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[int] = []

    def started(setup: TrainingSetup) -> SimpleNamespace:
        return SimpleNamespace(rank=setup.rank, close=lambda: closed.append(setup.rank))

    def full(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(start_ranks, "RankProcess", started)
    monkeypatch.setattr(TrainingSetup, "local", full)
    sizes = replace(prepared.sizes, capacity=replace(prepared.sizes.capacity, num_ranks=3))
    with pytest.raises(torch.OutOfMemoryError):
        replace(prepared, sizes=sizes).build_executor()
    assert sorted(closed) == [1, 2]


def test_what_is_done_is_said(folder: Path) -> None:
    said: list[str] = []
    prepare(tiny_task(folder), clock=SystemClock(), say=said.append)
    assert said[0] == "reading and tokenising the data"
    assert said[1].startswith("loading ")
