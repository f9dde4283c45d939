"""The engine from Python: tasks in, one result each out; what is not supported yet says so."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import cohort
from cohort.core.errors import InputError
from cohort.machine.cluster.local import cpu_slots
from cohort.machine.local_slots import hardware_of_slots
from cohort.runs.results.task_result import TasksFailedError
from cohort.scheduling.cost.hardware import Hardware
from cohort.task_queue.workers.pool import PoolRequest
from tests.end_to_end.tiny_tasks import outcome_of, tiny_data, write_inputs
from tests.task_queue.inline_pool import InlinePool

QUICK = {
    "training": {"max_steps": 4, "batch_size": 2},
    "lora": {"target_modules": ["q_proj"], "lora_alpha": "2r"},
    "evaluation": {"max_examples": 4, "max_cost_fraction": 1000.0},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_inputs(tmp_path_factory.mktemp("tiny"))


def quick_task(folder: Path, **keys: object) -> cohort.Task:
    keys = {"search_space": {"learning_rate": [1e-3, 1e-2], "r": [2, 4]}, **QUICK, **keys}
    dataset = {"train": folder / "train.jsonl", "validation": 0.25, "max_length": 64}
    return cohort.Task(model=folder / "model", dataset=dataset, **keys)  # type: ignore[arg-type]


def test_the_example_of_the_documents(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    engine = cohort.Engine(total_gpus=0)
    tasks = [
        cohort.Task(
            model=str(folder / "model"),
            dataset=str(folder / "train.jsonl"),
            search_space={"learning_rate": [1e-5, 2e-4], "r": [2, 4], "batch_size": [4, 8]},
            training={"max_steps": 4},
        )
    ]
    early_exit = cohort.EarlyExit(warmup_fraction=0.25)
    (result,) = engine.run(tasks, early_exit=early_exit)
    assert result.run_directory == Path("runs/train")
    assert (result.adapter_directory / "adapter_config.json").is_file()
    assert result.report.is_file()
    assert len(result.trials) == 8
    assert result.trials[0] == result.best_trial
    assert result.metrics["loss"] == min(row["eval_loss"] for row in result.trials)
    assert "warmup_fraction: 0.25" in (result.run_directory / "task.yaml").read_text()
    assert "num_gpus: 0" in (result.run_directory / "task.yaml").read_text()


def test_it_is_the_same_run_as_the_command_lines(folder: Path, tmp_path: Path) -> None:
    from cohort.engine.tune import tune
    from cohort.tasks.loading import task_from_mapping

    (result,) = cohort.Engine(total_gpus=0).run([quick_task(folder)], run_directory=tmp_path / "api")
    data = tiny_data(**QUICK, search={"space": {"learning_rate": [1e-3, 1e-2], "r": [2, 4]}})
    del data["early_exit"]
    data["lora"] = QUICK["lora"]
    tune(task_from_mapping(data, base_directory=folder), tmp_path / "file")
    assert outcome_of(result.run_directory) == outcome_of(tmp_path / "file")


def test_several_tasks_and_one_that_fails(folder: Path, tmp_path: Path) -> None:
    tasks = [
        quick_task(folder, name="good"),
        quick_task(folder, name="certain_to_stop", search_space={"learning_rate": [1e30]}),
        quick_task(folder, name="other", early_exit="none"),
    ]
    engine = cohort.Engine(total_gpus=0)
    with pytest.raises(TasksFailedError, match="1 of 3 tasks failed") as caught:
        engine.run(tasks, early_exit=cohort.EarlyExit(warmup_fraction=0.5), run_directory=tmp_path / "runs")
    assert set(caught.value.results) == {"good", "other"}
    assert "no trial had a finite validation loss" in str(caught.value.failures["certain_to_stop"])
    other = caught.value.results["other"]
    assert other.run_directory == tmp_path / "runs" / "other"
    assert {row["status"] for row in other.trials} == {"completed"}, "its own early_exit counts"
    assert "warmup_fraction: 0.5" in (tmp_path / "runs" / "good" / "task.yaml").read_text()


def test_nothing_begins_when_any_task_is_wrong(folder: Path, tmp_path: Path) -> None:
    tasks = [quick_task(folder, name="good"), quick_task(folder, name="bad", lora={"target_modules": ["q_prj"]})]
    with pytest.raises(InputError, match=r"bad: .*q_prj"):
        cohort.Engine(total_gpus=0).run(tasks, run_directory=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_every_problem_of_a_task_is_named(folder: Path) -> None:
    with pytest.raises(InputError) as caught:
        quick_task(folder, name="mine", training={"learing_rate": 1}, search_space={"rank": [1]}, objective="dpoo")
    told = str(caught.value)
    for part in ("Task 'mine': training.learing_rate", "rank", "objective: dpo?"):
        assert part in told


@pytest.mark.parametrize(
    ("keys", "found"),
    [
        ({"strategy": "tensor_parallel"}, "an unknown argument; allowed: total_gpus"),
        ({"total_gpus": -1}, "-1"),
        ({"total_gpus": True}, "True"),
    ],
)
def test_an_engine_that_cannot_be_is_refused(keys: dict[str, object], found: str) -> None:
    with pytest.raises(InputError, match=found):
        cohort.Engine(**keys)  # type: ignore[arg-type]


def test_several_tasks_on_several_gpus(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def two_slots(request: PoolRequest, directory: Path) -> tuple[InlinePool, Hardware]:
        assert request == PoolRequest(gpus=2)
        return InlinePool(2), hardware_of_slots(cpu_slots(2, num_threads=1))

    monkeypatch.setattr("cohort.api.execution.open_pool", two_slots)
    monkeypatch.setattr("cohort.api.engine._require_gpus", lambda _: None)
    runs = tmp_path / "runs"
    engine = cohort.Engine(total_gpus=2)
    tasks = [quick_task(folder, name=name, priority=priority) for name, priority in (("one", 0), ("two", 3))]
    one, two = engine.run(tasks, run_directory=runs)
    assert [result.run_directory for result in (one, two)] == [runs / "one", runs / "two"]
    (alone,) = cohort.Engine(total_gpus=0).run([quick_task(folder, name="alone")], run_directory=tmp_path / "alone")
    assert outcome_of(runs / "one")["adapters"] == outcome_of(alone.run_directory)["adapters"]

    bad = quick_task(folder, name="bad", search_space={"learning_rate": [1e30], "r": [2]})
    with pytest.raises(TasksFailedError, match="bad: failed: no trial had a finite validation loss") as caught:
        engine.run([bad, quick_task(folder, name="good")], run_directory=runs)
    assert set(caught.value.results) == {"good"}


def test_tasks_have_names_of_their_own(folder: Path) -> None:
    engine = cohort.Engine(total_gpus=0)
    with pytest.raises(InputError, match="two tasks with the name 'one'"):
        engine.run([quick_task(folder, name="one"), quick_task(folder, name="one")])
    with pytest.raises(InputError, match="at least one task"):
        engine.run([])


def test_lower_layers_are_public() -> None:
    code = """
import sys, json, cohort
light = "torch" not in sys.modules
from cohort.adapters import AdapterBank
from cohort.kernels.packed_linear import packed_linear
print(json.dumps([light, cohort.adapters.AdapterBank is AdapterBank, AdapterBank.__name__,
                  cohort.kernels.packed_linear.packed_linear is packed_linear]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [True, True, "AdapterBank", True]
