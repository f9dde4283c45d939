"""ARCHITECTURE's walks name files that are there, in an order in which one leads to the next."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

TEXT = (REPOSITORY / "ARCHITECTURE.md").read_text(encoding="utf-8")
SOURCE = REPOSITORY / "src"
WALKS = {
    title: re.findall(r"\]\((src/[^)]+\.py)\)", body)
    for title, body in re.findall(r"^## (A \w+): [^\n]*\n(.*?)(?=^## )", TEXT, flags=re.MULTILINE | re.DOTALL)
}


@cache
def _imported(file: Path) -> frozenset[Path]:
    """Return the files of the source that a file imports, at its top or within a function."""
    names = set[str]()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    paths = {SOURCE / name.replace(".", "/") for name in names}
    return frozenset({path.with_suffix(".py") for path in paths} | {path / "__init__.py" for path in paths})


def test_there_is_a_walk_of_a_row_a_trial_and_a_request() -> None:
    assert list(WALKS) == ["A row", "A trial", "A request"]
    assert all(len(walk) == len(set(walk)) >= 12 for walk in WALKS.values())


@pytest.mark.parametrize("title", WALKS)
def test_each_file_of_a_walk_leads_to_the_next(title: str) -> None:
    walk = [REPOSITORY / name for name in WALKS[title]]
    for place, file in enumerate(walk):
        assert file.is_file(), file
        before = walk[:place]
        leads = any(file in _imported(earlier) for earlier in before) or any(b in _imported(file) for b in before[-1:])
        assert leads or not before, f"{file} and what comes before it do not import each other"


def test_the_page_is_two_screens_and_its_links_lead_somewhere() -> None:
    # a screen of text, and the tables next to it
    assert len(TEXT.splitlines()) <= 120
    for target in re.findall(r"\]\(([^)#]+)", TEXT):
        assert (REPOSITORY / target).exists(), target
