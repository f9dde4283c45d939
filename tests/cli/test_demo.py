"""``cohort demo`` lays out a folder of its own; what it computes is the end of ``make demo``."""

from __future__ import annotations

from pathlib import Path

import pytest

from cohort.cli import demo
from cohort.runs.directory import RunDirectory
from cohort.tasks.loading import load_task
from tests.cli.command import cohort


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Path, Path]]:
    """Return the folders that would have been tuned in."""
    calls = list[tuple[Path, Path]]()
    monkeypatch.setattr(demo, "_compare", lambda task_file, folder: calls.append((task_file, folder)))
    return calls


def test_an_earlier_demo_is_replaced(
    compared: list[tuple[Path, Path]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "my demo"
    for _ in range(2):
        code, _, err = cohort(capsys, "demo", folder)
        assert code == 0, err
        assert not (folder / "sweep").exists()
        (folder / "sweep").mkdir()
        (folder / "task" / "task.yaml").write_text("mine")
        (folder / "notes.txt").write_text("kept")
    assert compared == [(folder / "task" / "task.yaml", folder)] * 2
    assert (folder / "notes.txt").read_text() == "kept"
    cohort(capsys, "demo", folder)
    task = load_task(folder / "task" / "task.yaml")
    assert Path(task.model_name_or_path).is_dir()


@pytest.mark.parametrize(("kind", "found"), [("file", "a file"), ("folder", "files that no demo has written")])
def test_what_is_not_a_demos_is_left_alone(
    compared: list[tuple[Path, Path]], tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, found: str
) -> None:
    taken = tmp_path / "taken"
    if kind == "folder":
        (taken / "sweep").mkdir(parents=True)
    else:
        taken.write_text("mine")
    code, _, err = cohort(capsys, "demo", taken)
    assert code == 2
    assert str(taken) in err
    assert found in err
    assert "cohort demo FOLDER" in err
    assert compared == []
    assert (taken / "sweep").is_dir() if kind == "folder" else taken.read_text() == "mine"


def test_a_demo_that_still_runs_is_left_alone(
    compared: list[tuple[Path, Path]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cohort(capsys, "demo", tmp_path)[0] == 0
    directory = RunDirectory.create(tmp_path / "sweep")
    directory.task_file.write_text("of the run")
    with directory.lock():
        code, _, err = cohort(capsys, "demo", tmp_path)
    assert code == 2
    assert "sweep is in use by process" in err
    assert "cohort demo FOLDER" in err
    assert directory.task_file.read_text() == "of the run"
    assert len(compared) == 1
