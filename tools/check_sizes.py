"""Check that files and functions stay readable: ``python tools/check_sizes.py [DIRECTORY ...]``.

A file above 350 lines is reported, above 500 it fails. A function above 60 lines of code fails (150 under
``kernels/``); its docstring is not counted, so that docstrings stay complete.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

__all__ = ["SizeReport", "check_file", "main"]

FILE_SMELL_LINES = 350
FILE_LIMIT_LINES = 500
FUNCTION_LIMIT_LINES = 60
KERNEL_LIMIT_LINES = 150


class SizeReport:
    """What was found: ``failures`` break the build, ``smells`` are only printed."""

    def __init__(self) -> None:
        self.failures: list[str] = []
        self.smells: list[str] = []


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


def check_file(path: Path, *, report: SizeReport) -> None:
    """Add what is too long in ``path`` to ``report``."""
    source = path.read_text(encoding="utf-8")
    num_lines = source.count("\n") + 1
    if num_lines > FILE_LIMIT_LINES:
        report.failures.append(f"{path}: {num_lines} lines; at most {FILE_LIMIT_LINES}, one idea a file")
    elif num_lines > FILE_SMELL_LINES:
        report.smells.append(f"{path}: {num_lines} lines; more than {FILE_SMELL_LINES} is a smell to explain")
    limit = KERNEL_LIMIT_LINES if "kernels" in path.parts else FUNCTION_LIMIT_LINES
    for node in _functions(ast.parse(source).body):
        length = (node.end_lineno or node.lineno) - node.lineno + 1 - _docstring_lines(node) - _nested_lines(node)
        if length > limit:
            report.failures.append(f"{path}:{node.lineno}: {node.name} has {length} lines; at most {limit}")


def main(directories: list[str]) -> int:
    """Check every Python file under ``directories`` and return the exit code."""
    report = SizeReport()
    for directory in directories:
        for path in sorted(Path(directory).rglob("*.py")):
            check_file(path, report=report)
    for line in report.smells:
        print(f"note: {line}")
    for line in report.failures:
        print(f"error: {line}")
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or ["src", "tests", "tools", "benchmarks", "examples"]))
