"""The pages for people who come from another tool name keys that a task file has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cohort.tasks.task_file import TaskFile
from tests.conftest import REPOSITORY

PAGES = sorted((REPOSITORY / "docs" / "how-to").glob("coming-from-*.md"))
SECTIONS = ("dataset", "lora", "training", "evaluation", "search", "early_exit", "memory")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_their_keys_are_keys_of_a_task_file(page: Path) -> None:
    named = set(re.findall(rf"`({'|'.join(SECTIONS)})\.(\w+)", page.read_text(encoding="utf-8")))
    for section, key in named:
        kind = TaskFile.model_fields[section].annotation
        fields = getattr(kind, "model_fields", None) or getattr(kind, "__dataclass_fields__", {})
        assert key in fields, f"{section}.{key}"


def test_each_of_them_is_in_the_readme_and_in_the_documentation() -> None:
    for place in ("README.md", "docs/index.md"):
        text = (REPOSITORY / place).read_text(encoding="utf-8")
        assert [page.name for page in PAGES if page.name not in text] == []
