"""The glossary is in order, and what users read has the field's word where there is one."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from cohort.tuning.trial_status import TrialStatus
from tests.conftest import REPOSITORY

PAGE = (REPOSITORY / "docs" / "glossary.md").read_text(encoding="utf-8")
WORDS = re.findall(r"^\| ([^|]+?) \| ", PAGE, flags=re.MULTILINE)[1:]
# our own word, as it may stand in code, and what users are told
INSTEAD = {"backbone": "base model", "parked": "paused", "price": "cost", "bank": "pack"}
# what prints, and what is printed from elsewhere; planning's prices are those of its linear program
ROOMS = [
    *("cli", "report", "prepare", "planning", "engine"),
    *("tasks", "runs", "tuning", "task_queue", "service"),
]


def _texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the strings of a module that have several words, without docstrings, assertions and SQL."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    silent: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            silent.add(id(node.value))
        if isinstance(node, ast.Assert) and node.msg is not None:
            silent |= {id(each) for each in ast.walk(node.msg)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str) or id(node) in silent:
            continue
        if " " in node.value.strip() and not re.search(r"\b(SELECT|INSERT|UPDATE|CREATE)\b", node.value):
            yield node.lineno, node.value


def test_words_stand_in_alphabetical_order_once() -> None:
    assert len(WORDS) > 30
    assert sorted(WORDS, key=str.casefold) == WORDS
    assert len(set(WORDS)) == len(WORDS)


def test_messages_have_the_words_of_the_field() -> None:
    house = re.compile(rf"\b({'|'.join(INSTEAD)})\b", flags=re.IGNORECASE)
    found = [
        f"{path.relative_to(REPOSITORY)}:{line}: {text!r}"
        for room in ROOMS
        for path in sorted((REPOSITORY / "src" / "cohort" / room).rglob("*.py"))
        for line, text in _texts(path)
        if house.search(text)
    ]
    page = (REPOSITORY / "src/cohort/report/report.html.j2").read_text(encoding="utf-8")
    found += [text for text in re.findall(r">([^<>{}]+)<", page) if house.search(text)]
    assert found == [], f"say {INSTEAD} in what users read"


def test_a_status_is_shown_in_the_words_of_the_field() -> None:
    assert {status.label for status in TrialStatus} & INSTEAD.keys() == set()
    assert TrialStatus("parked").label == "paused"
