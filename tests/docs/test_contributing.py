"""CONTRIBUTING names the rooms that the import linter orders, and files that exist."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

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
    section = TEXT[TEXT.index("Inside `engine`") : TEXT.index("Inside `ranks`")]
    folders = {path.parent.name for path in (REPOSITORY / "src/cohort/engine").glob("*/__init__.py")}
    assert folders <= set(re.findall(r"`(\w+)`", section))


def _rows() -> list[str]:
    section = TEXT[TEXT.index("## Where would you change X?") : TEXT.index("## Words")]
    return [line for line in section.splitlines() if line.startswith("| ") and not line.startswith("| change")]


def test_every_change_names_files_and_folders_that_exist() -> None:
    assert len(_rows()) >= 20
    for row in _rows():
        folders: list[Path] = []
        names = re.findall(r"`([^`]*(?:/|\.py|\.j2))`", row)
        assert any("/" in name for name in names), row
        for name in names:
            path = REPOSITORY / name.removeprefix("python ")
            if "/" in name:
                assert path.exists(), f"{row}: {name}"
                folders.append(path if path.is_dir() else path.parent)
            else:
                # "`parsing.py` there": next to a file that the row names with its folder
                assert any((folder / name).is_file() for folder in folders), f"{row}: {name}"
    for target in re.findall(r"\]\(([^)#]+)\)", TEXT):
        assert (REPOSITORY / target).exists(), target


def test_what_a_new_file_has_to_define_is_what_its_neighbours_define() -> None:
    found = [
        (folder, name)
        for row in _rows()
        for folder, name in re.findall(r"a file in `([^`]+/)`[^|]*? (?:with an? |whose )`([A-Z][A-Za-z_]+)`", row)
    ]
    assert {name for _, name in found} == {
        *(
            "EXIT_RULE",
            "SAMPLER",
            "OBJECTIVE",
            "OPTIMIZER",
            "FAMILY",
            "FORMAT",
            "METRIC",
            "WorkerPool",
            "TOKEN_OBJECTIVE",
            "GROUP_LOSS",
            "REWARD",
        ),
    }
    for folder, name in found:
        own = rf"^{name}\b.*=" if name.isupper() else rf"\b{name}\b"
        files = [path.read_text(encoding="utf-8") for path in (REPOSITORY / folder).glob("*.py")]
        # a pool is one by its methods: the protocol's file alone names it
        least = 2 if name.isupper() else 1
        assert sum(bool(re.search(own, text, flags=re.MULTILINE)) for text in files) >= least, (folder, name)


def test_commands_name_scripts_tests_and_targets_that_exist() -> None:
    commands = re.findall(
        r"`((?:\.venv/bin/)?python [^`]+|make [a-z0-9-]+|\.ci/\w+)`|^    (make [a-z0-9-]+)", TEXT, flags=re.MULTILINE
    )
    lines = [first or second for first, second in commands]
    assert len(lines) >= 8
    targets = re.findall(r"^([a-z0-9-]+):", (REPOSITORY / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    for line in lines:
        program, *words = line.split()
        if program == "make":
            assert words[0] in targets, line
        for word in (program, *words):
            if "/" in word and not word.startswith(".venv"):
                assert (REPOSITORY / word).is_file(), line


def test_the_house_has_at_most_28_rooms_each_with_one_line() -> None:
    section = TEXT[TEXT.index("## The house") : TEXT.index("Inside `engine`")]
    rooms = re.findall(r"^\| `(\w+)` \|", section, flags=re.MULTILINE)
    assert len(rooms) == len(set(rooms)) <= 28
    there = {path.parent.name for path in (REPOSITORY / "src/cohort").glob("*/__init__.py")}
    assert set(rooms) == there


# what newcomers asked to change, the row that answers, the file that it names first, and what that file defines
QUESTIONS = [
    ("an optimizer", "src/cohort/training/optimizers/kinds/", "lion.py", "OPTIMIZER"),
    ("a model family", "src/cohort/models/families/", "llama.py", "FAMILY"),
    ("an exit rule", "src/cohort/tuning/early_exit/kinds/", "patience.py", "EXIT_RULE"),
    ("an objective", "src/cohort/training/objectives/kinds/", "dpo.py", "OBJECTIVE"),
    ("how a metric normalises text", "src/cohort/metrics/normalization.py", "", "def normalized"),
    ("the default of a training key", "src/cohort/tasks/hyperparameters.py", "", "lr_scheduler_type"),
    ("a data format", "src/cohort/data/files/formats.py", "", "class DataFormat"),
    ("what the status table shows", "src/cohort/report/trial_columns.py", "", "SHOWN_COLUMNS"),
    ("a format of frozen weights", "src/cohort/models/weight_formats/kinds/", "int8.py", "FORMAT"),
    ("how many bytes of a device are reserved", "src/cohort/memory/budget.py", "", "reserve_bytes"),
    ("the cards on top of the report", "src/cohort/report/headline_cards.py", "", "def headline_bars"),
    ("an HTTP endpoint", "src/cohort/service/completion_routes.py", "", "@routes.post"),
    ("which keys and values a server evicts", "src/cohort/serving/block_manager.py", "", "def take"),
    ("the order of queued tasks", "src/cohort/scheduling/placement/task_order.py", "", "class ListPolicy"),
    ("when checkpoints are written", "src/cohort/engine/train/state_saving.py", "", "def save_when_due"),
    ("a tracker", "src/cohort/integrations/trackers/", "mlflow_tracker.py", "class"),
    (
        "the order of passes in a pipeline",
        "src/cohort/scheduling/pipelines/pipeline_schedule.py",
        "",
        "def stage_order",
    ),
    ("how weights are pulled", "src/cohort/ranks/peer_source.py", "", "class"),
    ("a form that `cohort export` writes", "src/cohort/adapter_files/export.py", "", "class ExportForm"),
    ("the text for a misspelt key", "src/cohort/tasks/unknown_keys.py", "", "Did you mean"),
]


@pytest.mark.parametrize(("change", "named", "inside", "defines"), QUESTIONS)
def test_the_list_answers_where_to_change_it(change: str, named: str, inside: str, defines: str) -> None:
    (row,) = (row for row in _rows() if row.startswith(f"| {change}"))
    assert re.findall(r"`(src/[^`]+)`", row)[0] == named
    assert defines in (REPOSITORY / named / inside).read_text(encoding="utf-8")
