"""A search whose best adapter is worse than the base model ends with exit code 3, compared at the end or not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cohort.scheduling.placement.records import TaskOption
from cohort.task_queue.operations import add_to_queue, work_off
from cohort.task_queue.records import QueuedTask
from tests.cli.command import cohort
from tests.end_to_end.tiny_tasks import tiny_data, write_inputs
from tests.task_queue.inline_pool import InlinePool


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_inputs(tmp_path_factory.mktemp("worse"))


def write_task(folder: Path, name: str, *, finalists: int, learning_rate: float = 10.0) -> Path:
    data = tiny_data(
        dataset={"validation": 0.5},
        # the head itself is trained, as the random weights before it hardly matter to the loss
        lora={"modules_to_save": ["lm_head"]},
        training={"max_steps": 2, "lr_scheduler_type": "constant", "warmup_ratio": 0.0},
        evaluation={"finalists": finalists, "max_examples": 12},
        search={"space": {"learning_rate": [learning_rate]}},
    )
    path = folder / f"{name}.yaml"
    path.write_text(json.dumps(data))
    return path


@pytest.mark.parametrize("finalists", [0, 3])
def test_it_ends_with_3(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], finalists: int) -> None:
    path, run = write_task(folder, f"worse{finalists}", finalists=finalists), tmp_path / "run"
    code, out, err = cohort(capsys, "tune", str(path), "-o", str(run))
    assert code == 3, out + err
    assert "nothing beats the base model: the best trial is worse" in " ".join(out.split())
    assert "no trial beats the base model" in err
    assert (run / "best" / "adapter_config.json").exists()
    # a finished run says it again
    assert cohort(capsys, "resume", str(run))[0] == 3


def test_a_queue_names_such_tasks_and_ends_with_3(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = tmp_path / "runs"
    files = [write_task(folder, "bad", finalists=0), write_task(folder, "good", finalists=0, learning_rate=1e-2)]
    add_to_queue(files, runs)
    work_off(runs, InlinePool(1), expect=_at_once)
    code, out, _ = cohort(capsys, "resume", str(runs))
    assert code == 3
    assert f"bad: no trial beats the base model; the adapter in {runs / 'bad' / 'best'} is worse than none" in out
    assert "good: no trial" not in out
    code, out, _ = cohort(capsys, "status", str(runs), "--json")
    assert code == 0, "to look at it is no failure"
    assert [task["is_worse"] for task in json.loads(out)["tasks"]] == [True, False]


def _at_once(task: QueuedTask) -> tuple[TaskOption, ...]:
    del task
    return (TaskOption(num_gpus=1, seconds=1.0),)
