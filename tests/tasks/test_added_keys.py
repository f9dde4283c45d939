"""Keys that the recorded task of an earlier version lacks."""

from __future__ import annotations

from typing import Any

from cohort.tasks.added_keys import options_as_recorded, with_added_keys
from cohort.tasks.task_file import TaskFile
from tests.tuning.loss_curves import BY_RANK

PLAIN: dict[str, Any] = {"model_name_or_path": "org/model", "dataset": {"train": "org/rows"}}


def test_a_record_without_the_key_means_what_happened_then() -> None:
    now = TaskFile.model_validate(PLAIN).model_dump(mode="json")
    assert with_added_keys(now) == now
    assert options_as_recorded(now) == []
    then = {**now, "early_exit": {name: value for name, value in now["early_exit"].items() if name != "divergence"}}
    assert with_added_keys(then)["early_exit"] == {**then["early_exit"], "divergence": "slopes"}
    assert options_as_recorded(then) == ["--early_exit.divergence=slopes"]


def test_trials_of_a_record_without_a_risk_are_compared_by_their_ranks_alone() -> None:
    now = TaskFile.model_validate(PLAIN).model_dump(mode="json")
    then = {**now, "early_exit": {name: value for name, value in now["early_exit"].items() if name not in BY_RANK}}
    assert with_added_keys(then)["early_exit"] == {**now["early_exit"], **BY_RANK}


def test_every_value_is_one_that_its_key_accepts_and_is_not_the_default() -> None:
    now = TaskFile.model_validate(PLAIN).model_dump(mode="json")
    before = with_added_keys({"evaluation": {}, "early_exit": {}})
    for section, found in before.items():
        TaskFile.model_validate({**PLAIN, section: found})
        # a key of no section has a value of its own
        default = {name: now[section][name] for name in found} if isinstance(found, dict) else now[section]
        assert default != found
