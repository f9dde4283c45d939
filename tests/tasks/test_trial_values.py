"""The hyperparameters of a trial that a person adds: what is not given, what follows, what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from cohort.core.errors import InputError
from cohort.tasks.loading import TaskFile, task_from_mapping
from cohort.tasks.trial_values import added_parameters, trial_values_of


@pytest.fixture
def task(tmp_path: Path) -> TaskFile:
    (tmp_path / "train.jsonl").write_text("")
    data = {
        "model_name_or_path": "hub/model",
        "dataset": {"train": "train.jsonl", "validation": 0.1},
        "training": {"batch_size": 4},
        "search": {"space": {"learning_rate": [1e-4, 2e-4], "r": [8, 16], "lora_alpha": "2r", "weight_decay": 0.1}},
    }
    return task_from_mapping(data, base_directory=tmp_path)


def test_a_new_trial_has_the_values_of_the_task(task: TaskFile) -> None:
    assert added_parameters(task, {"r": 64}) == {
        "learning_rate": 2e-4,
        "r": 64,
        "lora_alpha": 128,
        "weight_decay": 0.1,
        "batch_size": 4,
    }


def test_a_clone_has_the_values_of_its_source_and_follows_its_own_rank(task: TaskFile) -> None:
    source = {"learning_rate": 1e-4, "r": 8, "lora_alpha": 16, "weight_decay": 0.1, "batch_size": 4, "seed": 3}
    assert added_parameters(task, {"learning_rate": 3e-4}, source=source) == {**source, "learning_rate": 3e-4}
    assert added_parameters(task, {"r": 32}, source=source) == {**source, "r": 32, "lora_alpha": 64}
    given = added_parameters(task, {"r": 32, "lora_alpha": "4r", "lora_dropout": 0.1}, source=source)
    assert given == {**source, "r": 32, "lora_alpha": 128, "lora_dropout": 0.1}


def test_every_value_that_may_not_be_is_named(task: TaskFile) -> None:
    with pytest.raises(InputError) as caught:
        added_parameters(task, {"r": 0, "learning_rate": "fast", "max_length": 64})
    assert [str(problem.where) for problem in caught.value.problems] == ["--r", "--learning_rate", "--max_length"]
    # one value for one trial, not the list that a search takes
    assert [problem.hint for problem in caught.value.problems][:2] == [
        "Write for example --r 8.",
        "Write for example --learning_rate 1e-4.",
    ]


def test_arguments_name_hyperparameters_in_any_form() -> None:
    arguments = ["--learning_rate", "3e-4", "--lora.r=8", "--search.space.seed", "1", "--batch-size", "2"]
    assert trial_values_of(arguments) == {"learning_rate": 3e-4, "r": 8, "seed": 1, "batch_size": 2}
    with pytest.raises(InputError, match=r"evaluation\.metric, which is the same for all trials"):
        trial_values_of(["--evaluation.metric", "loss"])


def test_a_misspelt_hyperparameter_is_answered_with_the_options_of_one_trial() -> None:
    with pytest.raises(InputError) as caught:
        trial_values_of(["--learning_rat", "3e-4"])
    (problem,) = caught.value.problems
    assert problem.hint == "Did you mean --learning_rate?"
    assert problem.allowed.startswith("hyperparameters: learning_rate and ")
    # another tool's word, not the nearest letters
    with pytest.raises(InputError, match=r"Did you mean --learning_rate\?"):
        trial_values_of(["--lr", "3e-4"])
    # the list is cut where no key is near
    with pytest.raises(InputError, match=r"and \d+ others(.|\n)*Write one of the hyperparameters\."):
        trial_values_of(["--zzz", "1"])
