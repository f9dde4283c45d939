"""CONTRIBUTING names the rooms that the import linter orders, and files that exist."""

from __future__ import annotations

import re
import tomllib

from tests.conftest import REPOSITORY

TEXT = (REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8")


def test_the_rooms_are_those_of_the_contract_in_its_order() -> None:
    contracts = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    layers = next(c for c in contracts["contracts"] if c["name"] == "layers point down")["layers"]
    # in parentheses: rooms that may be missing
    ordered = [name for layer in layers for name in re.findall(r"\w+", layer)]
    there = [name for name in ordered if (REPOSITORY / "src/cohort" / name).exists() or name == "api"]
    section = TEXT[TEXT.index("## The house") : TEXT.index("Inside `engine`")]
    assert re.findall(r"^\| `(\w+)` \|", section, flags=re.MULTILINE) == there


def test_the_rooms_of_engine_are_named() -> None:
    section = TEXT[TEXT.index("Inside `engine`") : TEXT.index("Both orders")]
    folders = {path.parent.name for path in (REPOSITORY / "src/cohort/engine").glob("*/__init__.py")}
    assert folders <= set(re.findall(r"`(\w+)`", section))


def test_every_change_names_a_file_or_folder_that_exists() -> None:
    section = TEXT[TEXT.index("## Where would you change X?") : TEXT.index("## Words")]
    rows = [line for line in section.splitlines() if line.startswith("| ") and not line.startswith("| change")]
    assert len(rows) >= 20
    for row in rows:
        names = re.findall(r"`((?:src|benchmarks|tests)/[^`]*)`", row)
        assert names, row
        for name in names:
            assert (REPOSITORY / name).exists(), f"{row}: {name}"
    for target in re.findall(r"\]\(([^)#]+)\)", TEXT):
        assert (REPOSITORY / target).exists(), target
