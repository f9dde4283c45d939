"""Mutants of a file: each changes one thing that says something, and is still Python."""

from __future__ import annotations

import ast
import difflib
import importlib
import importlib.util
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["SAME_MEANING", "SIGN", "Mutant", "mutants_of", "mutated", "Span", "unevaluated"]

# they differ for objects that are equal and not the same, which enums, None and small numbers never are
SAME_MEANING = ("Eq_Is", "NotEq_IsNot", "Is_Eq", "IsNot_NotEq")
SIGN = re.compile(r"[*/]\s*[,)]")
Span = tuple[tuple[int, int], tuple[int, int]]


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One change of one file.

    Attributes:
        path: Of the file, below the repository.
        operator: cosmic-ray's name of the kind of change.
        occurrence: Which place of the file, of those that the operator could change.
        code: The file with the change.
        changed: The lines without and with it.
    """

    path: str
    operator: str
    occurrence: int
    line: int
    code: str
    changed: tuple[str, str]


def unevaluated(tree: ast.Module) -> list[Span]:
    """Return the spans whose mutants say nothing.

    Annotations are never evaluated; what decorators say is checked for all files by ``tests/architecture``; an
    assertion of our own only speaks where there is a bug.
    """
    parts: list[ast.AST] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign | ast.arg):
            parts += [node.annotation] if node.annotation is not None else []
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            parts += node.decorator_list
            if not isinstance(node, ast.ClassDef) and node.returns is not None:
                parts.append(node.returns)
        elif isinstance(node, ast.Assert):
            parts.append(node)
    # the sign before a decorator belongs to it
    return [
        ((part.lineno, part.col_offset - 1), (part.end_lineno, part.end_col_offset)) for part in map(_located, parts)
    ]


def _located(node: ast.AST) -> Any:
    return node


def mutants_of(path: Path) -> Iterator[tuple[str, int, tuple[int, int]]]:
    """Yield operator, occurrence and place of every mutant of a file that says something."""
    plugins, trees = importlib.import_module("cosmic_ray.plugins"), importlib.import_module("cosmic_ray.ast")
    source = path.read_text(encoding="utf-8")
    spans = unevaluated(ast.parse(source))
    nodes, lines = list(trees.ast_nodes(trees.get_ast(source))), source.splitlines()
    for name in sorted(plugins.operator_names()):
        kind = plugins.get_operator(name)
        if kind.arguments() or name.endswith(SAME_MEANING):
            continue
        places = (place for node in nodes for place in kind().mutation_positions(node))
        for occurrence, (begin, _) in enumerate(places):
            # the sign after which parameters need their names: with another, callers who write them do as before
            is_mark = SIGN.match(lines[begin[0] - 1], begin[1]) is not None
            if not is_mark and not any(first <= begin < last for first, last in spans):
                yield name, occurrence, begin


def mutated(path: Path, operator: str, occurrence: int, *, repository: Path) -> Mutant | None:
    """Return the mutant; None where it changes nothing or is no Python."""
    plugins, mutating = importlib.import_module("cosmic_ray.plugins"), importlib.import_module("cosmic_ray.mutating")
    source = path.read_text(encoding="utf-8")
    code = mutating.mutate_code(source, plugins.get_operator(operator)(), occurrence)
    if code is None or code == source:
        return None
    try:
        same = ast.dump(ast.parse(code)) == ast.dump(ast.parse(source))
    except SyntaxError:
        return None
    if same:
        return None
    before, after = source.splitlines(), code.splitlines()
    blocks = difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    _, first, last, begin, end = next(block for block in blocks if block[0] != "equal")
    texts = " ".join(map(str.strip, before[first:last])), " ".join(map(str.strip, after[begin:end]))
    where = path.relative_to(repository).as_posix()
    return Mutant(path=where, operator=operator, occurrence=occurrence, line=first + 1, code=code, changed=texts)
