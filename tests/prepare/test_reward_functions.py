"""Rewards are found and tried before anything trains, and known by their code."""

from __future__ import annotations

from pathlib import Path

import pytest

from cohort.data.tokenised import TokenisedRows
from cohort.prepare.reward_functions import reward_identities, reward_problems
from cohort.tasks.loading import TaskFile
from tests.end_to_end.tiny_tasks import tiny_task, write_inputs
from tests.training.small_models import random_rows

GOOD = "def mine(completions, **columns):\n    return [0.0] * len(completions)\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_inputs(tmp_path_factory.mktemp("functions"))


@pytest.fixture(scope="module")
def rows() -> TokenisedRows:
    found = random_rows(2)
    return TokenisedRows(**{**vars(found), "columns": ('{"prompt": "1+1=", "answer": "2"}', "{}")})


def task_of(folder: Path, code: str) -> TaskFile:
    (folder / "rewards.py").write_text(code)
    return tiny_task(folder, objective="grpo", rewards=["exact_match", "rewards:mine"])


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("def mine(completions):\n    return [float(text[0]) for text in completions]\n", "raised IndexError"),
        ("def mine(completions, missing):\n    return [0.0]\n", "missing 1 required positional argument: 'missing'"),
        ("def mine(completions, **_):\n    return 1.0\n", "returned 1.0, not a list"),
        ("def mine(completions, **_):\n    return [1.0]\n", "returned 1 values for 2 completions"),
        ("def mine(completions, trainer_state):\n    return [0.0]\n", "which needs trainer_state"),
        ("def other(completions):\n    return [0.0]\n", "no mine in rewards.py"),
        ("import not_installed_anywhere\n", "No module named 'not_installed_anywhere'"),
    ],
)
def test_what_cannot_be_a_reward_is_said_with_the_key(folder: Path, rows: TokenisedRows, code: str, told: str) -> None:
    (problem,) = reward_problems(task_of(folder, code), rows)
    assert str(problem.where).endswith("rewards.functions[1]")
    assert told in problem.found
    assert problem.hint


def test_a_built_in_reward_needs_its_column(folder: Path, rows: TokenisedRows) -> None:
    task = tiny_task(folder, objective="grpo", rewards=[{"function": "exact_match", "column": "target"}])
    (problem,) = reward_problems(task, rows)
    assert "no column target in the row; its columns are answer" in problem.found


def test_a_function_is_known_by_its_code_and_not_by_its_comments(folder: Path, rows: TokenisedRows) -> None:
    found = []
    for code in (GOOD, GOOD + "# a comment\n", GOOD.replace("0.0", "1.0")):
        task = task_of(folder, code)
        assert reward_problems(task, rows) == []
        found.append(reward_identities(task))
    assert found[0] == found[1] != found[2]
    assert list(found[0]) == ["reward:mine"]
    plain = tiny_task(folder)
    assert (reward_problems(plain, rows), reward_identities(plain)) == ([], {})
