"""How several GPUs would share a task: by the rules of a run, on hardware that is not here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cohort.core.errors import InputError
from cohort.machine.measurements import MeasuredCosts
from cohort.planning.estimate.task_costs import TaskCosts
from cohort.prepare.inputs import TaskInputs, read_inputs
from cohort.scheduling.cost.hardware import KNOWN_GPUS
from tests.end_to_end.tiny_tasks import tiny_task, write_inputs

H100 = KNOWN_GPUS["H100"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_inputs(tmp_path_factory.mktemp("strategies"))


@pytest.fixture(scope="module")
def inputs(folder: Path) -> TaskInputs:
    return read_inputs(tiny_task(folder))


def costs(folder: Path, inputs: TaskInputs, **sections: Any) -> TaskCosts:
    return TaskCosts(tiny_task(folder, **{"num_gpus": "auto", **sections}), inputs, H100, MeasuredCosts(runs=()))


def test_a_small_model_is_whole_on_each_gpu(folder: Path, inputs: TaskInputs) -> None:
    found = costs(folder, inputs).memory.strategy
    assert [found.name(count) for count in (1, 2)] == ["replicas", "replicas"]
    assert not found.holds_together(2)
    assert found.problems(2) == []


def test_ranks_that_hold_one_model_have_a_part_of_it_and_one_bank(folder: Path, inputs: TaskInputs) -> None:
    found = costs(folder, inputs, strategy="pipeline")
    assert [found.memory.strategy.name(count) for count in (1, 2)] == ["replicas", "pipeline"]
    assert found.memory.strategy.device_bytes(2) == -(-found.memory.strategy.device_bytes(1) // 2)
    sizes = found.memory.sizes(2)
    assert sizes.capacity.num_ranks == 1
    # the seconds of one GPU, by how much faster the strategy is predicted to be
    assert found.time(2, sizes).training == pytest.approx(
        found.time(1, sizes).training / found.memory.strategy.speed_up(2), rel=1e-6
    )


def test_what_the_strategy_cannot_do_refuses_that_number_of_gpus(folder: Path, inputs: TaskInputs) -> None:
    # two layers make no four stages
    with pytest.raises(InputError, match=r"stages|layers"):
        costs(folder, inputs, strategy="pipeline").memory.sizes(4)


def test_the_fastest_of_those_that_fit_is_chosen_as_a_run_does(
    folder: Path, inputs: TaskInputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = costs(folder, inputs).memory.strategy
    seconds = {"replicas": 2.0, "adapter_parallel": 2.0, "tensor": 1.0, "pipeline": 1.5}
    monkeypatch.setattr(type(found), "_seconds", lambda self, strategy, num_gpus: seconds[strategy])
    monkeypatch.setattr(type(found), "_all_problems", lambda self, strategy, num_gpus: [])
    assert found.name(2) == "tensor"
    # no gain of less than a twentieth is worth another strategy
    seconds["tensor"], seconds["pipeline"] = 1.92, 1.92
    assert found.name(2) == "replicas"
    found = replace(found, weights=replace(found.weights, weight_bytes=4 * H100.memory_bytes))
    seconds["tensor"] = 0.1
    assert found.name(2) == "replicas"
