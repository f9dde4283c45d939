"""Nothing takes a problem's texts apart: a place has parts, and a kind of problem has a type or an argument."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TEXTS = {"where", "found", "allowed", "hint"}
READING = {"partition", "rpartition", "split", "rsplit", "splitlines", "startswith", "endswith", "find", "index"}
READING |= {"removeprefix", "removesuffix", "replace", "rfind", "strip", "lower"}


def _is_text(node: ast.AST) -> bool:
    """Whether a node is ``x.where``, ``x.found``, ``x.allowed`` or ``x.hint``, or ``str()`` of one of them."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "str" and node.args:
        return _is_text(node.args[0])
    return isinstance(node, ast.Attribute) and node.attr in TEXTS


def parsed_back(source: str) -> Iterator[int]:
    """Yield the lines of ``source`` on which a problem's text is searched, cut or compared with words."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and node.attr in READING and _is_text(node.value):
            yield node.lineno
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            for operator, left, right in zip(node.ops, sides, sides[1:], strict=False):
                words = isinstance(left, ast.Constant | ast.JoinedStr) or isinstance(
                    right, ast.Constant | ast.JoinedStr
                )
                is_search = isinstance(operator, ast.In | ast.NotIn) and _is_text(right)
                if is_search or (words and (_is_text(left) or _is_text(right))):
                    yield node.lineno


def test_no_text_of_a_problem_is_parsed_back(repository: Path) -> None:
    root = repository / "src" / "cohort"
    found = [
        f"{path.relative_to(root)}:{line}" for path in root.rglob("*.py") for line in parsed_back(path.read_text())
    ]
    assert not found, "keep the parts in Place, or give the problem a type"


@pytest.mark.parametrize(
    "source",
    [
        'problem.where.partition(": ")',
        '"can use" in problem.found',
        "name not in str(problem.where)",
        'problem.where == "--gpus"',
        'problem.allowed.replace("began", "was added")',
        'str(p.where).startswith(f"{name}:")',
    ],
)
def test_the_check_sees_what_it_forbids(source: str) -> None:
    assert list(parsed_back(source)) == [1]


def test_the_check_allows_showing_and_comparing_places() -> None:
    assert not list(
        parsed_back('f"{problem.where} and after"; str(p.where); place.file == name; p.where == other.where')
    )
