"""Everything before the first step: what is prepared, and what tasks that share a model must have in common."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from cohort.core.clock import SystemClock
from cohort.core.errors import InputError
from cohort.parallel import start_ranks
from cohort.parallel.commands import RankSetup
from cohort.prepare.preparation import Preparation, prepare
from tests.cli.tiny_task import write_rows, write_tiny_model
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

    def started(setup: RankSetup) -> SimpleNamespace:
        return SimpleNamespace(rank=setup.rank, close=lambda: closed.append(setup.rank))

    def full(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(start_ranks, "RankProcess", started)
    monkeypatch.setattr(start_ranks, "RankExecutor", full)
    sizes = replace(prepared.sizes, capacity=replace(prepared.sizes.capacity, num_ranks=3))
    with pytest.raises(torch.OutOfMemoryError):
        replace(prepared, sizes=sizes).build_executor()
    assert sorted(closed) == [1, 2]


def test_what_is_done_is_said(folder: Path) -> None:
    said: list[str] = []
    prepare(tiny_task(folder), clock=SystemClock(), say=said.append)
    assert said[0] == "reading and tokenising the data"
    assert said[1].startswith("loading ")


def test_evaluation_rows_follow_from_the_seed(folder: Path) -> None:
    write_rows(folder / "many.jsonl", count=80)
    data = {"train": "many.jsonl", "validation": 0.5}
    tasks = (
        tiny_task(
            folder, dataset=data, evaluation={"max_examples": 40, "max_cost_fraction": 0.1}, training={"seed": seed}
        )
        for seed in (0, 0, 1)
    )
    one, again, other = (prepare(task, clock=SystemClock()).evaluation_rows for task in tasks)
    assert len(one) == 8
    assert one == again
    assert one != other


def test_a_task_may_share_a_loaded_base_model(folder: Path, prepared: Preparation) -> None:
    shared = prepare(tiny_task(folder, training={"seed": 1}), clock=SystemClock(), backbone=prepared.backbone)
    assert shared.decoder is prepared.decoder
    sized = replace(prepared.backbone, sizes=prepared.sizes)
    assert prepare(tiny_task(folder), clock=SystemClock(), backbone=sized).sizes is prepared.sizes


def test_another_model_or_device_cannot_be_shared(folder: Path, prepared: Preparation, tmp_path: Path) -> None:
    other = write_tiny_model(tmp_path / "other", num_layers=1)
    with pytest.raises(InputError, match="a base model that the session's other tasks do not use"):
        prepare(tiny_task(folder, model_name_or_path=str(other)), clock=SystemClock(), backbone=prepared.backbone)
    backbone = prepared.backbone
    memory = replace(backbone.memory, machine=replace(prepared.machine, device=torch.device("cuda")))
    with pytest.raises(InputError, match="but the other tasks of this session train on cuda"):
        prepare(tiny_task(folder), clock=SystemClock(), backbone=replace(backbone, memory=memory))
