"""Run directories: refusing what is there, one process at a time, nothing half-written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cohort.core.errors import InputError
from cohort.runs.directory import RunDirectory


def test_create_takes_a_new_or_an_empty_directory(tmp_path: Path) -> None:
    assert RunDirectory.create(tmp_path / "a" / "b").root.is_dir()
    directory = RunDirectory.create(tmp_path / "a" / "b")
    with directory.lock():
        pass
    (directory.root / ".run.db.abc.partial").touch()
    RunDirectory.create(directory.root)


def test_create_refuses_another_run_and_says_how_to_go_on(tmp_path: Path) -> None:
    (tmp_path / "run.db").touch()
    with pytest.raises(InputError, match=r"already holds another run.*cohort resume"):
        RunDirectory.create(tmp_path)
    with RunDirectory(tmp_path).lock(), pytest.raises(InputError, match=r"which process \d+ on .* works on; .*--watch"):
        RunDirectory.create(tmp_path)


def test_create_refuses_foreign_files_and_names_them(tmp_path: Path) -> None:
    for number in range(7):
        (tmp_path / f"photo{number}.jpg").touch()
    with pytest.raises(InputError, match=r"photo0\.jpg.* and 2 more"):
        RunDirectory.create(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="a file"):
        RunDirectory.create(tmp_path / "file")
    with pytest.raises(InputError, match="which is a file"):
        RunDirectory.create(tmp_path / "file" / "below")


def test_create_refuses_a_link_to_nothing(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    for path in (tmp_path / "link", tmp_path / "link" / "below"):
        with pytest.raises(InputError, match="link to"):
            RunDirectory.create(path)
    assert not (tmp_path / "gone").exists()


def test_create_refuses_what_may_not_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # root may write anywhere, so the answer of the system is put in its place
    monkeypatch.setattr(os, "access", lambda path, _: Path(path) != tmp_path)
    with pytest.raises(InputError, match="a directory that is not writable"):
        RunDirectory.create(tmp_path)
    with pytest.raises(InputError, match="which is not writable"):
        RunDirectory.create(tmp_path / "below")


def test_open_needs_a_run(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no run\.db in it"):
        RunDirectory.open(tmp_path)
    with pytest.raises(InputError, match="nothing"):
        RunDirectory.open(tmp_path / "absent")


def test_clean_up_mends_what_a_kill_left(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    (tmp_path / ".best.replaced").mkdir()
    (tmp_path / ".best.replaced" / "adapter_config.json").touch()
    (tmp_path / ".best.x.partial").mkdir()
    trial = directory.trial(7)
    assert trial == tmp_path / "trials" / "0007"
    trial.mkdir(parents=True)
    (trial / ".state.x.partial").touch()
    (directory.trials / ".0008.replaced").mkdir()
    directory.clean_up()
    assert os.listdir(directory.best) == ["adapter_config.json"]
    assert sorted(os.listdir(tmp_path)) == ["best", "trials"]
    assert sorted(os.listdir(directory.trials)) == ["0007", "0008"]
    assert os.listdir(trial) == []


def test_a_path_next_to_a_run_is_told_which_one_is_meant(tmp_path: Path) -> None:
    for name in ("mine", "other"):
        (tmp_path / name / "best").mkdir(parents=True)
        (tmp_path / name / "run.db").touch()
    (tmp_path / "team" / "first").mkdir(parents=True)
    for name in ("queue.db", "first/run.db"):
        (tmp_path / "team" / name).touch()
    hints = {
        tmp_path / "team" / "fisrt": f"Did you mean {tmp_path / 'team' / 'first'}? If it is a task of a queue, see",
        tmp_path / "team" / "zzz": "Check the path, or start the run with `cohort tune`, or see `cohort status",
        tmp_path / "mnie": f"Did you mean {tmp_path / 'mine'}?",
        tmp_path / "mine" / "best": f"Did you mean {tmp_path / 'mine'}?",
        tmp_path: f"Did you mean {tmp_path / 'mine'} or {tmp_path / 'other'}?",
        tmp_path / "zzz": "Check the path",
        tmp_path / "no" / "such": "Check the path",
    }
    for path, hint in hints.items():
        with pytest.raises(InputError) as caught:
            RunDirectory.open(path)
        assert caught.value.problems[0].hint.startswith(hint), path
