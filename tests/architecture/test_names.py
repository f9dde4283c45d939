"""Files are named after what they own, and stay readable."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

FORBIDDEN_WORDS = {
    "utils",
    "util",
    "helpers",
    "helper",
    "common",
    "misc",
    "legacy",
    "copy",
    "new",
    "old",
    "tmp",
    "stuff",
}
SOURCE_FOLDERS = ("src", "tests", "tools", "benchmarks", "examples")


def _python_files(repository: Path) -> list[Path]:
    return [path for folder in SOURCE_FOLDERS for path in sorted((repository / folder).rglob("*.py"))]


def test_names_say_what_a_file_owns(repository: Path) -> None:
    offending = [
        str(path.relative_to(repository))
        for path in _python_files(repository)
        for part in path.relative_to(repository).with_suffix("").parts
        if FORBIDDEN_WORDS & set(part.lower().split("_")) or re.search(r"_v\d+$", part)
    ]
    assert offending == []


@pytest.mark.parametrize("name", ["model_utils", "helpers", "trainer_v2", "step_copy"])
def test_the_name_rule_would_catch(name: str) -> None:
    assert FORBIDDEN_WORDS & set(name.split("_")) or re.search(r"_v\d+$", name)


def test_files_and_functions_stay_readable(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(repository), *sys.path])
    from tools.check_sizes import check_file

    assert [failure for path in _python_files(repository) for failure in check_file(path)] == []


def test_the_size_rule_would_catch(tmp_path: Path) -> None:
    from tools.check_sizes import FILE_LIMIT_LINES, check_file

    whole_file, long_file = tmp_path / "whole.py", tmp_path / "long.py"
    whole_file.write_text("x = 1\n" * FILE_LIMIT_LINES)
    long_file.write_text("x = 1\n" * (FILE_LIMIT_LINES + 1))
    long_function = tmp_path / "function.py"
    long_function.write_text('def f():\n    """Says.\n    a lot.\n    """\n' + "    x = 1\n" * 60)
    failures = [failure for path in (whole_file, long_file, long_function) for failure in check_file(path)]
    assert [line.split(": ")[0].rsplit("/", 1)[1] for line in failures] == ["long.py", "function.py:1"]
