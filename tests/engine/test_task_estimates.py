from pathlib import Path

import pytest
import torch

from cohort.core.errors import InputError
from cohort.engine.machine import Machine
from cohort.engine.task_estimates import estimate_task, hardware_of
from cohort.scheduling.cost_model import CostSource
from cohort.scheduling.hardware import KNOWN_GPUS, Hardware
from tests.end_to_end.tiny_tasks import tiny_task, write_inputs

CPU = hardware_of(
    Machine(device=torch.device("cpu"), device_name="a CPU", dtype="float32", threads=1, memory_bytes=8 << 30)
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_inputs(tmp_path_factory.mktemp("inputs"))


def test_an_estimate_says_what_a_task_takes_and_where_the_figure_comes_from(folder: Path) -> None:
    estimate = estimate_task(tiny_task(folder), CPU)
    (option,) = estimate.options
    assert (estimate.num_gpus, estimate.num_trials, len(estimate.trials)) == (1, 6, 6)
    assert option.step_source is CostSource.ANALYTIC
    parts = estimate.training_seconds + estimate.evaluation_seconds + estimate.start_seconds
    assert option.seconds == pytest.approx(parts)
    assert 0 < option.memory_bytes < CPU.memory_bytes
    request = estimate.request("tiny", arrival_seconds=3.0)
    assert (request.task_id, request.arrival_seconds, request.seconds_on(1)) == ("tiny", 3.0, option.seconds)


def test_more_work_takes_longer(folder: Path) -> None:
    short = estimate_task(tiny_task(folder), CPU)
    longer = estimate_task(tiny_task(folder, training={"max_steps": 32, "batch_size": 2}), CPU)
    wider = estimate_task(tiny_task(folder, training={"max_steps": 8, "batch_size": 8}), CPU)
    assert longer.training_seconds == pytest.approx(4 * short.training_seconds)
    assert wider.training_seconds > short.training_seconds


def test_trials_that_a_sampler_proposes_later_count(folder: Path) -> None:
    search = {"sampler": "tpe", "trials": 30, "space": {"learning_rate": {"min": 1e-4, "max": 1e-2, "log": True}}}
    assert estimate_task(tiny_task(folder, search=search), CPU).num_trials == 30


def test_several_gpus_are_options_only_where_allowed(folder: Path) -> None:
    task = tiny_task(folder, num_gpus="auto")
    assert [option.num_gpus for option in estimate_task(task, KNOWN_GPUS["H200"]).options] == [1]
    assert [option.num_gpus for option in estimate_task(task, KNOWN_GPUS["H200"], most_gpus=6).options] == [1, 2, 4]


def test_a_base_model_that_fits_no_gpu_is_refused_in_the_file_s_words(folder: Path) -> None:
    small = Hardware(name="toy", memory_bytes=2e9, flops_per_second=1e12, bytes_per_second=1e11)
    with pytest.raises(InputError) as caught:
        estimate_task(tiny_task(folder, num_gpus="auto"), small, most_gpus=8)
    (problem,) = caught.value.problems
    assert "model_name_or_path" in problem.where
    assert "toy" in problem.allowed


def test_ranks_that_fit_no_gpu_are_refused(folder: Path) -> None:
    small = Hardware(name="toy", memory_bytes=5e9, flops_per_second=1e12, bytes_per_second=1e11)
    task = tiny_task(folder, num_gpus="auto", search={"space": {"r": [8192 * 64]}})
    with pytest.raises(InputError) as caught:
        estimate_task(task, small)
    (problem,) = caught.value.problems
    assert problem.where.endswith("search.space.r")
    assert "toy" in problem.allowed


def test_a_task_for_the_cpu_is_not_planned_on_gpus(folder: Path) -> None:
    with pytest.raises(InputError, match="num_gpus"):
        estimate_task(tiny_task(folder), KNOWN_GPUS["H200"])
