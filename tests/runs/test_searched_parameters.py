"""Which hyperparameters a run searched: as its task says, not as its trials look."""

from __future__ import annotations

from cohort.runs.fact_groups import TaskFacts
from cohort.runs.facts import RunFacts
from cohort.runs.records import JsonValue
from cohort.runs.searched_parameters import chosen_names, searched_names, searched_ranges
from cohort.tasks.task_file import TaskFile


def _facts(*, space: dict[str, JsonValue] | None = None, sampler: str = "grid") -> RunFacts:
    task = {
        "model_name_or_path": "model",
        "dataset": {"train": "train.jsonl"},
        "search": {"space": space or {}, "sampler": sampler},
    }
    return RunFacts(task=TaskFacts(document=TaskFile.model_validate(task).model_dump(mode="json")))


def test_the_searched_are_those_of_the_space_in_its_order() -> None:
    space: dict[str, JsonValue] = {
        "warmup_ratio": [0.0, 0.1],
        "r": 16,
        "learning_rate": {"min": 1e-5, "max": 1e-3, "num": 3},
    }
    assert searched_names(_facts(space=space)) == ("warmup_ratio", "r", "learning_rate")
    assert searched_names(RunFacts()) == ()
    assert searched_names(RunFacts(task=TaskFacts(document={"search": None}))) == ()


def test_a_multiple_of_the_rank_is_searched_but_not_chosen() -> None:
    space: dict[str, JsonValue] = {"r": [8, 16], "lora_alpha": "2r", "optim": ["adamw", "lion"]}
    assert searched_names(_facts(space=space)) == ("r", "lora_alpha", "optim")
    assert chosen_names(_facts(space=space)) == ("r", "optim")
    space["lora_alpha"] = ["1r", "2r"]
    assert chosen_names(_facts(space=space)) == ("r", "lora_alpha", "optim")


def test_a_range_without_steps_is_one_and_says_whether_it_is_logarithmic() -> None:
    space: dict[str, JsonValue] = {
        "warmup_ratio": {"min": 0.0, "max": 0.1},
        "learning_rate": {"min": 1e-5, "max": 1e-3, "log": True},
        "r": {"min": 8, "max": 64, "step": 8},
        "batch_size": [1, 2],
    }
    assert searched_ranges(_facts(space=space, sampler="random")) == {"warmup_ratio": False, "learning_rate": True}
