import re
from pathlib import Path
from typing import Any

import pytest
import torch

from cohort.core.errors import InputError
from cohort.engine.tune import tune
from cohort.machine.machine import Machine, choose_machine
from cohort.machine.measurements import RunCosts, write_costs
from cohort.machine.thread_count import settle_thread_count
from cohort.planning.estimate.estimate import estimate_task, hardware_of, task_degrees
from cohort.planning.estimate.planned_machine import cost_key
from cohort.prepare.inputs import read_inputs
from cohort.runs.facts import Activity
from cohort.runs.reader import RunReader
from cohort.scheduling.cost.hardware import KNOWN_GPUS, Hardware
from cohort.scheduling.cost.model import AdapterWork, CostSource, StepCost, StepSample
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
    assert (estimate.num_gpus, estimate.num_trials) == (1, 6)
    assert option.step_source is CostSource.ANALYTIC
    time = option.time
    assert option.seconds == pytest.approx(time.total)
    assert 0 < option.memory_bytes < CPU.memory_bytes
    request = estimate.request("tiny", arrival_seconds=3.0)
    assert (request.task_id, request.arrival_seconds, request.seconds_on(1)) == ("tiny", 3.0, option.seconds)


def test_more_work_takes_longer(folder: Path) -> None:
    short = estimate_task(tiny_task(folder), CPU)
    longer = estimate_task(tiny_task(folder, training={"max_steps": 32, "batch_size": 2}), CPU)
    wider = estimate_task(tiny_task(folder, training={"max_steps": 8, "batch_size": 8}), CPU)
    trained = [estimate.options[0].time.training for estimate in (short, longer, wider)]
    assert trained[1] == pytest.approx(4 * trained[0])
    assert trained[2] > trained[0]


def test_trials_that_a_sampler_proposes_later_count(folder: Path) -> None:
    search = {"sampler": "tpe", "trials": 30, "space": {"learning_rate": {"min": 1e-4, "max": 1e-2, "log": True}}}
    assert estimate_task(tiny_task(folder, search=search), CPU).num_trials == 30


def test_several_gpus_are_options_only_where_allowed(folder: Path) -> None:
    task = tiny_task(folder, num_gpus="auto")
    assert [option.num_gpus for option in estimate_task(task, KNOWN_GPUS["H200"]).options] == [1]
    several = estimate_task(task, KNOWN_GPUS["H200"], most_gpus=6).options
    assert [(option.num_gpus, option.strategy) for option in several] == [(n, "replicas") for n in (1, 2, 4)]
    fixed = tiny_task(folder, num_gpus=3)
    assert [option.num_gpus for option in estimate_task(fixed, KNOWN_GPUS["H200"], gpus_of_node=4).options] == [3]


@pytest.mark.parametrize(
    ("num_gpus", "most_gpus", "gpus_of_node", "degrees"),
    [
        ("auto", None, 8, (1,)),
        ("auto", 8, 5, (1, 2, 4)),
        (0, 2, 4, (1, 2)),
        (2, None, None, (2,)),
        (2, 4, 2, (2,)),
    ],
)
def test_degrees_of_a_task(
    folder: Path, num_gpus: int | str, most_gpus: int | None, gpus_of_node: int | None, degrees: tuple[int, ...]
) -> None:
    task = tiny_task(folder, num_gpus=num_gpus)
    assert task_degrees(task, most_gpus=most_gpus, gpus_of_node=gpus_of_node) == degrees


def test_more_gpus_than_a_machine_has_are_refused(folder: Path) -> None:
    task = tiny_task(folder, num_gpus=4)
    for most, there, why in ((None, 2, "the GPUs, or CPU workers, of one machine"), (2, None, "--max-gpus-per-task")):
        with pytest.raises(InputError) as caught:
            estimate_task(task, KNOWN_GPUS["H200"], most_gpus=most, gpus_of_node=there)
        (problem,) = caught.value.problems
        assert (problem.found, problem.allowed) == ("4", f"auto | 1 to 2: {why}")
        assert problem.hint == "Write num_gpus: 2, or auto."


def test_a_base_model_that_fits_no_gpu_is_refused_in_the_file_s_words(folder: Path) -> None:
    small = Hardware(name="toy", memory_bytes=2e9, flops_per_second=1e12, bytes_per_second=1e11)
    with pytest.raises(InputError) as caught:
        estimate_task(tiny_task(folder, num_gpus="auto"), small, most_gpus=8)
    (problem,) = caught.value.problems
    assert "model_name_or_path" in str(problem.where)
    assert "toy" in problem.allowed


def test_recomputing_every_pass_is_planned_with(folder: Path) -> None:
    gpu = KNOWN_GPUS["H200"]
    kept, recomputed = (
        estimate_task(tiny_task(folder, num_gpus="auto", memory={"gradient_checkpointing": mode}), gpu).options[0]
        for mode in ("auto", "always")
    )
    assert 1 < recomputed.time.training / kept.time.training <= 1.5
    assert recomputed.memory_bytes <= kept.memory_bytes


def test_a_memory_limit_is_planned_with(folder: Path) -> None:
    gpu = KNOWN_GPUS["H200"]
    free = estimate_task(tiny_task(folder, num_gpus="auto"), gpu).options[0]
    limited = estimate_task(tiny_task(folder, num_gpus="auto", memory={"limit": "4GiB"}), gpu).options[0]
    assert limited.memory_bytes <= 4 << 30
    assert limited.memory_bytes <= free.memory_bytes
    with pytest.raises(InputError) as caught:
        estimate_task(tiny_task(folder, num_gpus="auto", memory={"limit": "1GiB"}), gpu)
    (problem,) = caught.value.problems
    assert "memory.limit" in str(problem.where)
    assert problem.found == "1.00 GiB"
    # as little as will do by an estimate from above: 1 % less is for the run to find out
    enough = re.fullmatch(r"Raise it to (\d\.\d\d) GiB or more .*, remove it.*", problem.hint)
    assert enough
    limits = (float(enough[1]), float(enough[1]) * 0.99)
    tasks = [tiny_task(folder, num_gpus="auto", memory={"limit": f"{limit} GiB"}) for limit in limits]
    assert [estimate_task(task, gpu).options[0].is_tight for task in tasks] == [False, True]
    # on a CPU as well, where a pass of fewer tokens fits
    wide = estimate_task(tiny_task(folder), CPU).options[0]
    narrow = estimate_task(tiny_task(folder, memory={"limit": "6MiB"}), CPU).options[0]
    assert narrow.memory_bytes < min(wide.memory_bytes, 6 << 20)


def test_ranks_that_fit_no_gpu_are_refused(folder: Path) -> None:
    small = Hardware(name="toy", memory_bytes=5e9, flops_per_second=1e12, bytes_per_second=1e11)
    task = tiny_task(folder, num_gpus="auto", search={"space": {"r": [8192 * 64]}})
    with pytest.raises(InputError) as caught:
        estimate_task(task, small)
    (problem,) = caught.value.problems
    assert "search.space.r" in str(problem.where)
    assert "toy" in problem.allowed
    assert re.match(r"\d+\.?\d* GiB would be enough, .*; there are 4\.66 GiB\. Choose", problem.hint)


def test_a_task_for_the_cpu_is_not_planned_on_gpus(folder: Path) -> None:
    with pytest.raises(InputError, match="num_gpus"):
        estimate_task(tiny_task(folder), KNOWN_GPUS["H200"])


def test_a_run_teaches_the_next_estimate(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COHORT_CACHE_DIR", str(tmp_path / "cache"))
    task = tiny_task(folder, early_exit="none", training={"max_steps": 12, "batch_size": 2})
    # the run settles its threads, which are part of what its costs hold for
    settle_thread_count(task.model_name_or_path, on_cpu=True)
    here = hardware_of(choose_machine(0, where="num_gpus"))
    assert estimate_task(task, here).options[0].step_source is CostSource.ANALYTIC
    tune(task, tmp_path / "run")
    (option,) = estimate_task(task, here).options
    assert option.step_source is CostSource.SCALED
    with RunReader.open(tmp_path / "run" / "run.db") as reader:
        facts = reader.facts()
    measured = facts.seconds[Activity.TRAIN]
    # the first steps warm up, and other programs may take turns on this machine
    assert 0.2 * measured < option.time.training < 5 * measured
    other = tiny_task(folder, early_exit="none", lora={"target_modules": ["q_proj"], "lora_alpha": "2r"})
    assert estimate_task(other, here).options[0].step_source is CostSource.ANALYTIC


def test_eight_measured_packs_need_no_data_sheet(folder: Path, tmp_path: Path) -> None:
    task = tiny_task(folder)
    true = StepCost(fixed_seconds=0.5, seconds_per_token=0.01, seconds_per_adapter=0.1)
    packs = [
        tuple(AdapterWork(r=16, num_tokens=8.0 * size, sum_squares=50.0, num_sequences=2) for _ in range(count))
        for count in (1, 2, 4)
        for size in (1, 2, 3)
    ]
    samples = tuple(StepSample(pack=pack, seconds=true.step_seconds(pack)) for pack in packs)
    runs = RunCosts(samples=samples, evaluated_tokens=100, evaluation_seconds=3.0, steps=9, start_seconds=2.0)
    write_costs(cost_key(task, read_inputs(task), CPU), runs, directory=tmp_path)
    estimate = estimate_task(task, CPU, cache_directory=tmp_path)
    (option,) = estimate.options
    assert option.step_source is CostSource.MEASURED
    # six trials of one batch size step together, eight times
    assert option.time.training == pytest.approx(8 * (0.5 + 6 * 0.1 + 6 * 2 * 0.01 * 4), rel=0.35)
    assert option.time.start > 2.0


def test_a_limit_that_only_the_estimate_of_passes_is_above_is_left_to_the_run_that_measures_them(folder: Path) -> None:
    sections: dict[str, Any] = {"search": {"space": {"r": [256]}}}
    tight = estimate_task(tiny_task(folder, **sections, memory={"limit": "1800 KiB"}), CPU).options[0]
    assert tight.is_tight
    assert tight.memory_bytes == 1800 << 10
    assert not estimate_task(tiny_task(folder, **sections, memory={"limit": "1 GiB"}), CPU).options[0].is_tight
    # what the adapter itself needs is certain, and a run that measures nothing has only the estimate
    for memory in ({"limit": "1600 KiB"}, {"limit": "1800 KiB", "profile": False}):
        with pytest.raises(InputError, match=r"search\.space\.r: found rank 256"):
            estimate_task(tiny_task(folder, **sections, memory=memory), CPU)
