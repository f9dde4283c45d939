"""Check that files and functions stay readable: ``python tools/check_sizes.py [DIRECTORY ...]``.

A file above 350 lines fails, and so does a function above 60 lines of code (150 under ``kernels/``); its docstring is
not counted, so that docstrings stay complete.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

__all__ = ["FILE_LIMIT_LINES", "check_file", "main"]

FILE_LIMIT_LINES = 350
FUNCTION_LIMIT_LINES = 60
KERNEL_LIMIT_LINES = 150


def _docstring_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    first = node.body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        return (first.end_lineno or first.lineno) - first.lineno + 1
    return 0


def _functions(statements: Sequence[ast.stmt]) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Functions at any depth; expressions, which are most of a file and define none, are not looked into."""
    for node in statements:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
        for part in (node, *getattr(node, "handlers", ()), *getattr(node, "cases", ())):
            for name in ("body", "orelse", "finalbody"):
                yield from _functions(getattr(part, name, ()))


def _nested_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of functions defined inside ``node``: they are measured on their own."""
    return sum((child.end_lineno or child.lineno) - child.lineno + 1 for child in _functions(node.body))


def check_file(path: Path) -> list[str]:
    """Return what is too long in ``path``."""
    source = path.read_text(encoding="utf-8")
    found: list[str] = []
    num_lines = len(source.splitlines())
    if num_lines > FILE_LIMIT_LINES:
        found.append(f"{path}: {num_lines} lines; at most {FILE_LIMIT_LINES}: split it, one idea a file")
    limit = KERNEL_LIMIT_LINES if "kernels" in path.parts else FUNCTION_LIMIT_LINES
    for node in _functions(ast.parse(source).body):
        length = (node.end_lineno or node.lineno) - node.lineno + 1 - _docstring_lines(node) - _nested_lines(node)
        if length > limit:
            found.append(f"{path}:{node.lineno}: {node.name} has {length} lines; at most {limit}")
    return found


def main(directories: list[str]) -> int:
    """Check every Python file under ``directories`` and return the exit code."""
    paths = (path for directory in directories for path in sorted(Path(directory).rglob("*.py")))
    failures = [failure for path in paths for failure in check_file(path)]
    for failure in failures:
        print(f"error: {failure}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or ["src", "tests", "tools", "benchmarks", "examples"]))
