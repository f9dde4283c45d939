"""A sweep by a loss of the user's own: from a task file and from Python; one that fails for a trial ends that trial."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from cohort.core.errors import InputError
from cohort.engine.tune import RunOptions, resume, tune
from cohort.prepare.inputs import read_inputs
from cohort.runs.reader import RunReader
from cohort.tasks.task import Task
from cohort.tuning.trial_status import TrialStatus
from tests.end_to_end.tiny_tasks import Interrupting, TickingClock, outcome_of, tiny_task, write_inputs

CODE = """
def focal(log_probs, tokens):
    return -((1 - log_probs.exp()) ** 2) * log_probs


def breaks_off(log_probs, tokens):
    # at a rate of 1e-6 the mean stays above -5.6, at 30 it falls to -5.8
    if float(log_probs.detach().mean()) < -5.75:
        raise ValueError("far from anything")
    return -log_probs


NO_FUNCTION = 3
"""
SMALL: dict[str, Any] = {
    "early_exit": {"rule": "none"},
    "training": {"max_steps": 4},
    "search": {"space": {"learning_rate": [1e-3, 1e-2]}},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_inputs(tmp_path_factory.mktemp("losses"))
    (folder / "mine.py").write_text(CODE)
    return folder


def test_a_sweep_minimises_the_function_and_resumes_with_it(folder: Path, tmp_path: Path) -> None:
    task = tiny_task(folder, objective="mine:focal", **SMALL)
    assert task.model_dump(mode="json")["objective"] == {"type": "function", "function": f"{folder / 'mine.py'}:focal"}
    tune(task, tmp_path / "run")
    tune(tiny_task(folder, **SMALL), tmp_path / "plain")
    focal, plain = outcome_of(tmp_path / "run"), outcome_of(tmp_path / "plain")
    assert focal["steps"].keys() == plain["steps"].keys()
    assert all(float(focal["steps"][key][0]) < float(plain["steps"][key][0]) for key in plain["steps"])
    with RunReader.open(tmp_path / "run" / "run.db") as reader:
        facts = reader.facts()
    assert list(facts.inputs.metric_functions or {}) == ["loss:focal"]
    options = RunOptions(checkpoint_seconds=0.0)
    with pytest.raises(KeyboardInterrupt):
        tune(task, tmp_path / "interrupted", options=options, watcher=Interrupting(3), clock=TickingClock())
    resume(tmp_path / "interrupted", options=options)
    assert outcome_of(tmp_path / "interrupted") == focal


def test_a_function_that_fails_for_a_trial_ends_that_trial(folder: Path, tmp_path: Path) -> None:
    space = {"learning_rate": [1e-6, 30.0]}
    sections = {**SMALL, "training": {"max_steps": 6}, "search": {"space": space}, "lora": {"lora_dropout": 0.0}}
    tune(tiny_task(folder, objective="mine:breaks_off", **sections), tmp_path / "run")
    with RunReader.open(tmp_path / "run" / "run.db") as reader:
        slow, fast = reader.trials()
    assert slow.status is TrialStatus.COMPLETED
    assert fast.status is TrialStatus.FAILED
    assert "breaks_off raised ValueError: far from anything (mine.py:" in fast.message
    assert "train.jsonl:" in fast.message


@pytest.mark.parametrize(
    ("objective", "told"),
    [
        ("mine:missing", "no missing in mine.py"),
        ("mine:NO_FUNCTION", "not a function"),
        ({"type": "function"}, "function without the key function"),
        ({"type": "sft", "function": "mine:focal"}, "function with sft"),
        ("gone.py:focal", "'gone.py', which does not exist"),
    ],
)
def test_what_is_no_loss_function_is_refused_before_anything_trains(folder: Path, objective: Any, told: str) -> None:
    with pytest.raises(InputError) as caught:
        read_inputs(tiny_task(folder, objective=objective, **SMALL))
    assert told in str(caught.value)


def from_python(log_probs: Tensor, tokens: Tensor) -> Tensor:
    return -log_probs * torch.where(tokens > 5, 2.0, 1.0)


def test_python_gives_the_function_itself(folder: Path) -> None:
    def task_with(objective: Any) -> Task:
        return Task(model=folder / "model", dataset=str(folder / "train.jsonl"), objective=objective, num_gpus=0)

    task = task_with(from_python).file
    assert task.objective.function == f"{__name__}:from_python" or str(task.objective.function).endswith(":from_python")
    assert list(read_inputs(task).metric_functions) == ["loss:from_python"]
    with pytest.raises(InputError, match=r"objective: found <function .*<lambda>.*Define it with def"):
        task_with(lambda log_probs, tokens: -log_probs)
