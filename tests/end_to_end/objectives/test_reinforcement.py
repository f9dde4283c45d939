"""A sweep whose trials train on their own answers: from the task file to the adapter, killed, and with bad rewards."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cohort.core.errors import InputError
from cohort.engine.tune import RunOptions, resume, tune
from cohort.runs.reader import RunReader
from cohort.tasks.loading import TaskFile
from tests.end_to_end.base_models.test_bridged import write_bridged
from tests.end_to_end.tiny_tasks import Interrupting, TickingClock, outcome_of, tiny_task, write_inputs

OPTIONS = RunOptions(checkpoint_seconds=0.0, checkpoint_share=math.inf)

REWARD = """
def low_letters(completions, **_):
    return [sum(letter < "m" for letter in text) / 6 for text in completions]

def fails_at_five(prompts, completions, **_):
    if any("5" in prompt for prompt in prompts):
        raise KeyError("five")
    return [float(len(text)) for text in completions]

def none(completions, **_):
    return [None] * len(completions)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_inputs(tmp_path_factory.mktemp("inputs") / "inputs")
    (folder / "my_rewards.py").write_text(REWARD)
    return folder


def task_of(folder: Path, *, rewards: Any = "my_rewards.py:low_letters", **sections: Any) -> TaskFile:
    return tiny_task(
        folder,
        **{
            "objective": {"type": "grpo", "num_generations": 3, "max_completion_length": 6},
            "rewards": {"functions": [rewards], "workers": 1} if isinstance(rewards, str) else rewards,
            "lora": {"lora_dropout": 0.0},
            "training": {"max_steps": 4},
            "search": {"space": {"learning_rate": [1e-3, 3e-2], "num_generations": [2, 4]}},
            "early_exit": {"rule": "none"},
            **sections,
        },
    )


def test_a_sweep_is_chosen_by_reward_and_a_killed_one_ends_in_the_same_adapters(folder: Path, tmp_path: Path) -> None:
    task, whole, killed = task_of(folder), tmp_path / "whole", tmp_path / "killed"
    tune(task, whole, options=OPTIONS, clock=TickingClock())
    with pytest.raises(KeyboardInterrupt):
        tune(task, killed, options=OPTIONS, watcher=Interrupting(3), clock=TickingClock())
    with pytest.raises(KeyboardInterrupt):
        resume(killed, options=OPTIONS, watcher=Interrupting(8), clock=TickingClock())
    resume(killed, options=OPTIONS)
    assert outcome_of(killed)["adapters"] == outcome_of(whole)["adapters"]
    assert outcome_of(killed)["steps"] == outcome_of(whole)["steps"]
    with RunReader.open(whole / "run.db") as reader:
        assert reader.facts().metric == "reward"
        steps = reader.log.steps()
        assert len(steps) == 16
        assert all(step.loss == -step.metrics["reward"] and step.answers for step in steps)
        (evaluated, *_) = reader.log.evaluations()
        assert evaluated.metrics["reward"] == pytest.approx(-evaluated.validation_loss)
    page = (whole / "report.html").read_text()
    assert "Held-out reward" in page
    assert "Answers of trial 0" in page


def test_a_reward_that_always_raises_is_named_with_its_row_before_anything_trains(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no function that gives any answer"):
        tune(task_of(folder, rewards="my_rewards.py:none"), tmp_path / "run")


def test_a_trial_whose_rewards_fail_ends_with_the_row_named_and_the_others_go_on(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"prompt": "1+1="}, {"prompt": "2+1="}, {"prompt": "5+1="}, {"prompt": "3+1="}]
    (folder / "few.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = task_of(
        folder,
        rewards="my_rewards.py:fails_at_five",
        dataset={"train": "few.jsonl", "validation": "train.jsonl"},
        # a batch of one meets the failing row alone
        search={"space": {"batch_size": [1, 4]}},
    )
    tune(task, tmp_path / "run")
    with RunReader.open(tmp_path / "run" / "run.db") as reader:
        alone, together = reader.trials()
    assert alone.status.value == "failed"
    assert "few.jsonl:3: the reward fails_at_five raised KeyError" in alone.message
    assert together.status.value == "completed"


def test_what_answers_cannot_be_drawn_with_is_refused_together(folder: Path, tmp_path: Path) -> None:
    rows = [{"prompt": "1" * 200}, {"prompt": "2+1="}]
    (folder / "long.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    dataset = {"train": "long.jsonl", "validation": "train.jsonl", "max_length": 512}
    task = task_of(folder, lora={"lora_dropout": 0.1, "modules_to_save": ["lm_head"]}, dataset=dataset)
    with pytest.raises(InputError) as caught:
        tune(task, tmp_path / "run")
    places = [str(problem.where) for problem in caught.value.problems]
    assert any("modules_to_save" in place for place in places)
    assert any("long.jsonl:1" in place for place in places)


def test_two_processes_draw_and_train_the_bits_of_one_and_name_the_same_failure(folder: Path, tmp_path: Path) -> None:
    sections: dict[str, Any] = {
        "rewards": "my_rewards.py:fails_at_five",
        "lora": {"lora_dropout": 0.1},
        "training": {"max_steps": 3},
        "search": {"space": {"batch_size": [1, 4]}},
    }
    one, two = tmp_path / "one", tmp_path / "two"
    tune(task_of(folder, **sections), one, options=OPTIONS)
    tune(task_of(folder, **sections), two, options=replace(OPTIONS, num_ranks=2))
    assert outcome_of(two)["steps"] == outcome_of(one)["steps"]
    assert outcome_of(two)["adapters"] == outcome_of(one)["adapters"]
    ends = []
    for run in (one, two):
        with RunReader.open(run / "run.db") as reader:
            ends.append([(trial.status.value, trial.message) for trial in reader.trials()])
    assert ends[0] == ends[1]


def test_a_sweep_over_answers_of_several_turns_is_resumed_in_an_interpreter_of_its_own(
    folder: Path, tmp_path: Path
) -> None:
    (folder / "my_game.py").write_text(
        "import sys\n"
        "def reply(messages, turn, is_last):\n"
        "    assert 'numpy' not in sys.modules\n"
        "    low = sum(letter < 'm' for letter in messages[-1]['content'])\n"
        "    return low / turn if is_last or turn == 2 else 'again:'\n"
    )
    task = task_of(
        folder,
        rewards={
            "functions": [{"function": "my_game.py:reply", "turns": 3}],
            "workers": 1,
            "python": sys.executable,
        },
        objective={"type": "grpo", "num_generations": 3, "max_completion_length": 24},
        dataset={"validation": 0.125},
        training={"max_steps": 2},
        search={"space": {"learning_rate": [1e-3, 3e-2]}},
    )
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    tune(task, whole, options=OPTIONS, clock=TickingClock())
    with pytest.raises(KeyboardInterrupt):
        tune(task, killed, options=OPTIONS, watcher=Interrupting(2), clock=TickingClock())
    resume(killed, options=OPTIONS)
    assert outcome_of(killed)["steps"] == outcome_of(whole)["steps"]
    assert outcome_of(killed)["adapters"] == outcome_of(whole)["adapters"]


def test_a_model_that_transformers_computes_is_swept_by_reward_and_resumed(tmp_path: Path) -> None:
    folder = write_bridged(tmp_path / "inputs", "gpt_oss")
    (folder / "my_rewards.py").write_text(REWARD)
    task = task_of(
        folder,
        objective={"type": "grpo", "num_generations": 2, "max_completion_length": 4},
        dataset={"validation": 0.125},
        lora={"target_modules": "all-linear", "lora_dropout": 0.0},
        training={"max_steps": 2},
        evaluation={"max_examples": 2},
        search={"space": {"learning_rate": [1e-3, 3e-2]}},
    )
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    tune(task, whole, options=OPTIONS, clock=TickingClock())
    with pytest.raises(KeyboardInterrupt):
        tune(task, killed, options=OPTIONS, watcher=Interrupting(2), clock=TickingClock())
    resume(killed, options=OPTIONS)
    assert outcome_of(killed)["steps"] == outcome_of(whole)["steps"]
    assert outcome_of(killed)["adapters"] == outcome_of(whole)["adapters"]
    with RunReader.open(whole / "run.db") as reader:
        assert max(step.metrics["sampler_difference"] for step in reader.log.steps()) < 1e-4
