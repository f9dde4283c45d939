"""A loss function is found and tried before anything trains, and known by its code."""

from __future__ import annotations

from pathlib import Path

import pytest

from cohort.prepare.loss_functions import loss_identity, loss_problems
from cohort.tasks.loading import TaskFile
from tests.end_to_end.tiny_tasks import tiny_task, write_inputs

GOOD = "def mine(log_probs, tokens):\n    return -log_probs\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_inputs(tmp_path_factory.mktemp("functions"))


def task_of(folder: Path, code: str, function: str = "mine") -> TaskFile:
    (folder / "losses.py").write_text(code)
    return tiny_task(folder, objective=f"losses:{function}")


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("def mine(log_probs, tokens):\n    return -log_probs.mean()\n", "returned a tensor [] of torch.float32"),
        ("def mine(log_probs, tokens):\n    return -tokens.float()\n", "a loss that does not depend on log_probs"),
        ("def mine(log_probs, tokens):\n    return log_probs[9]\n", "raised IndexError"),
        ("def mine(log_probs):\n    return -log_probs\n", "which does not take two arguments"),
        ("def other(log_probs, tokens):\n    return -log_probs\n", "no mine in losses.py"),
        ("import not_installed_anywhere\n", "cannot be imported"),
    ],
)
def test_what_cannot_be_a_loss_is_said_with_the_key(folder: Path, code: str, told: str) -> None:
    (problem,) = loss_problems(task_of(folder, code))
    assert str(problem.where).endswith("objective")
    assert told in problem.found


def test_a_function_is_known_by_its_code_and_not_by_its_comments(folder: Path) -> None:
    found = []
    for code in (GOOD, GOOD + "# a comment\n", GOOD.replace("-log", "-2 * log")):
        task = task_of(folder, code)
        assert loss_problems(task) == []
        found.append(loss_identity(task))
    assert found[0] == found[1] != found[2]
    assert list(found[0]) == ["loss:mine"]
    plain = tiny_task(folder)
    assert (loss_problems(plain), loss_identity(plain)) == ([], {})
