"""A key that does not exist is answered with the one that was meant."""

from __future__ import annotations

import pytest

from cohort.tasks.task_file import TaskFile
from cohort.tasks.unknown_keys import known_keys, unknown_key_hint


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        (("training", "learning_rat"), "Did you mean training.learning_rate? Rename it."),
        (("training", "r"), "Did you mean lora.r? Move it there."),
        (("training", "lr"), "Did you mean training.learning_rate? Rename it."),
        (("lora", "bias"), "Remove it: adapters have no biases, and those of the base model stay frozen."),
        (("lora", "xyzzy"), "Remove it."),
    ],
)
def test_the_hint_names_the_key_that_was_meant(path: tuple[str, ...], hint: str) -> None:
    assert unknown_key_hint(TaskFile, path) == hint


def test_every_section_is_known_with_its_keys() -> None:
    found = known_keys(TaskFile)
    assert {"training", "training.learning_rate", "lora.r", "search.space"} <= set(found)
