"""Seconds and memory of a task from its trials, without a weight read."""

from __future__ import annotations

from pathlib import Path

import pytest

from cohort.machine.measurements import MeasuredCosts, RunCosts
from cohort.planning.estimate.task_costs import ENOUGH_PACKS, TaskCosts
from cohort.planning.estimate.time_parts import START_SECONDS
from cohort.prepare.inputs import TaskInputs, read_inputs
from cohort.scheduling.cost.hardware import KNOWN_GPUS, Hardware
from cohort.scheduling.cost.model import AdapterWork, CostSource, StepSample
from cohort.tasks.task_file import TaskFile
from tests.end_to_end.tiny_tasks import tiny_task, write_inputs

CPU = Hardware(name="a CPU", memory_bytes=8e9, flops_per_second=4e10, bytes_per_second=1e10, is_gpu=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_inputs(tmp_path_factory.mktemp("costs"))


@pytest.fixture(scope="module")
def inputs(folder: Path) -> TaskInputs:
    return read_inputs(tiny_task(folder))


def costs(task: TaskFile, inputs: TaskInputs, hardware: Hardware = CPU, *runs: RunCosts) -> TaskCosts:
    return TaskCosts(task, inputs, hardware, MeasuredCosts(runs=runs))


def measured(count: int) -> RunCosts:
    samples = tuple(
        StepSample(pack=(AdapterWork(r=16, num_tokens=20.0 + n, sum_squares=400.0, num_sequences=2),), seconds=2.0)
        for n in range(count)
    )
    return RunCosts(samples=samples, evaluated_tokens=10, evaluation_seconds=5.0, steps=10, start_seconds=3.0,
                    finish_seconds=7.0, other_seconds=20.0)  # fmt: skip


def test_measured_steps_take_the_place_of_arithmetic(folder: Path, inputs: TaskInputs) -> None:
    task = tiny_task(folder)
    sources = []
    for runs in ((), (measured(1),), (measured(ENOUGH_PACKS),)):
        found = costs(task, inputs, CPU, *runs)
        sources.append(found.time(1, found.memory.sizes(1)).source)
    assert sources == [CostSource.ANALYTIC, CostSource.SCALED, CostSource.MEASURED]


def test_the_parts_of_a_run_follow_what_runs_measured(folder: Path, inputs: TaskInputs) -> None:
    found = costs(tiny_task(folder), inputs, CPU, measured(ENOUGH_PACKS))
    time = found.time(1, found.memory.sizes(1))
    assert time.start == START_SECONDS + 3.0
    # two seconds a step between steps, and seven at the end
    assert (time.rest - 7.0) % 2.0 == pytest.approx(0.0)
    assert time.total == time.shortened + time.start + time.rest


def test_recomputing_costs_time_and_no_memory(folder: Path, inputs: TaskInputs) -> None:
    plain = costs(tiny_task(folder), inputs)
    always = costs(tiny_task(folder, memory={"gradient_checkpointing": "always"}), inputs)
    sizes, recomputed = plain.memory.sizes(1), always.memory.sizes(1)
    assert always.time(1, recomputed).training > plain.time(1, sizes).training
    # two layers keep little more than what is recomputed; deeper models save the rest
    assert always.memory.memory_bytes(1, recomputed) <= plain.memory.memory_bytes(1, sizes)


def test_gpus_divide_the_trials_and_each_holds_the_whole_model(folder: Path, inputs: TaskInputs) -> None:
    found = costs(tiny_task(folder, num_gpus="auto"), inputs, KNOWN_GPUS["H200"])
    one, two = found.memory.sizes(1), found.memory.sizes(2)
    assert found.memory.weights.strategy(2) == "replicas"
    assert two.capacity.num_ranks == 2
    assert found.memory.memory_bytes(2, two) <= found.memory.memory_bytes(1, one)
    # six trials of one kind: three on each GPU, whose steps cost what a step of three costs on one
    three = [found.works[trial_id] for trial_id in range(3)]
    cost, _ = found.step_cost(1, tokens_per_pass=two.executor.token_budget)
    steps = found.trials[0].spec.num_steps
    assert found.time(2, two).training == pytest.approx(steps * cost.step_seconds(three))
    assert found.time(2, two).total < found.time(1, one).total
    assert found.step_cost(2, tokens_per_pass=None)[1] is CostSource.ANALYTIC


def odd_run(*, r: int = 16, seconds: float) -> RunCosts:
    sample = StepSample(pack=(AdapterWork(r=r, num_tokens=20.0, sum_squares=400.0, num_sequences=2),), seconds=seconds)
    return RunCosts(samples=(sample,), evaluated_tokens=10, evaluation_seconds=50.0, steps=2, start_seconds=60.0,
                    finish_seconds=30.0, other_seconds=20.0)  # fmt: skip


def test_a_run_of_ranks_far_from_the_task_s_says_nothing_about_it(folder: Path, inputs: TaskInputs) -> None:
    nothing, odd = (costs(tiny_task(folder), inputs, CPU, *runs) for runs in ((), (odd_run(r=20_000, seconds=30.0),)))
    assert odd.time(1, odd.memory.sizes(1)) == nothing.time(1, nothing.memory.sizes(1))


@pytest.mark.parametrize("usual", [1, 3])
def test_one_odd_run_does_not_move_what_the_others_measured(usual: int, folder: Path, inputs: TaskInputs) -> None:
    runs = [measured(ENOUGH_PACKS)] * usual
    without, with_it = (
        costs(tiny_task(folder), inputs, CPU, *found) for found in (runs, [odd_run(seconds=40.0), *runs])
    )
    assert with_it.time(1, with_it.memory.sizes(1)) == without.time(1, without.memory.sizes(1))
