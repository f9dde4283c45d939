"""What a hyperparameter may be in some trial, and which optimizers' states a run has room for."""

from __future__ import annotations

from pathlib import Path

import pytest

from cohort.tasks.possible_values import possible_optimizers, possible_values
from tests.end_to_end.tiny_tasks import tiny_task, write_inputs

IN_FLOAT32 = ("adamw", "lion", "muon", "sgd")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_inputs(tmp_path_factory.mktemp("tiny"))


def test_a_list_a_range_and_a_section(folder: Path) -> None:
    space = {"r": [2, 4], "lora_dropout": {"min": 0.0, "max": 0.5, "num": 3}}
    task = tiny_task(folder, search={"space": space}, training={"learning_rate": 1e-3})
    assert possible_values(task, "r") == (2, 4)
    assert possible_values(task, "lora_dropout") == (0.0, 0.5)
    assert possible_values(task, "learning_rate") == (1e-3,)


def test_eight_bit_states_are_for_those_who_ask(folder: Path) -> None:
    assert possible_optimizers(tiny_task(folder)) == IN_FLOAT32
    assert possible_optimizers(tiny_task(folder, training={"optim": "lion"})) == IN_FLOAT32
    assert possible_optimizers(tiny_task(folder, training={"optim": "adamw_8bit"})) == ("adamw_8bit",)
    both = tiny_task(folder, search={"space": {"optim": ["adamw", "adamw_8bit"]}})
    assert possible_optimizers(both) == ("adamw", "adamw_8bit")
