"""What the documents promise and this version cannot do is refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tasks.task_files import BASE, problems_of


@pytest.mark.parametrize(
    ("addition", "key"),
    [
        ("objective: dpo", "objective"),
    ],
)
def test_what_is_documented_but_not_built_says_so(folder: Path, addition: str, key: str) -> None:
    problems = problems_of(folder, BASE + addition)
    assert [str(problem.where) for problem in problems] == [f"{folder / 'task.yaml'}:3: {key}"]
    assert "not supported yet" in problems[0].found
