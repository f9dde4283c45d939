"""Shares of the planned steps that simulated trials do: stated, of the selection alone, or replayed from curves."""

from __future__ import annotations

import gzip
import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from cohort.core.errors import InputError
from cohort.planning.exit_shares import exit_shares_of, read_exit_shares, selection_shares
from cohort.planning.planning import NamedTask
from cohort.tasks.task_file import TaskFile
from cohort.tuning.early_exit.settings import EarlyExitSettings
from tests.end_to_end.tiny_tasks import tiny_task


def task_with(folder: Path, **sections: Any) -> TaskFile:
    (folder / "model").mkdir(exist_ok=True)
    (folder / "train.jsonl").touch()
    return tiny_task(folder, **sections)


def test_a_share_is_taken_as_it_is() -> None:
    assert read_exit_shares("0.25", where="--exits") == (0.25,)


@pytest.mark.parametrize("text", ["0", "1.5", "-1", "nan", "no/such/file"])
def test_what_is_no_share_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="Write a share such as"):
        read_exit_shares(text, where="--exits")


def test_the_selection_alone_keeps_its_share_of_the_trials(tmp_path: Path) -> None:
    many = {"sampler": "random", "trials": 60, "space": {"learning_rate": {"min": 1e-5, "max": 1e-3, "log": True}}}
    exits = {"warmup_fraction": 0.25, "select_fraction": 0.5}
    task = task_with(tmp_path, early_exit=exits, search=many)
    assert statistics.fmean(selection_shares(task)) == pytest.approx(0.5 + 0.5 * 0.25, abs=0.01)
    assert selection_shares(task_with(tmp_path, early_exit="none")) == (1.0,)
    # twelve go on at least, so that a search of ten ends none
    floor = {**exits, "select_at_least": 12}
    assert selection_shares(task_with(tmp_path, early_exit=floor, search={**many, "trials": 10})) == (1.0,)


def test_tasks_of_one_file_share_its_shares(tmp_path: Path) -> None:
    file = task_with(tmp_path, early_exit="none")
    tasks = [NamedTask(name=f"a-{n}", path=tmp_path / "a.yaml", file=file) for n in (1, 2)]
    assert exit_shares_of(tasks, None, where="--exits") == {"a-1": (1.0,), "a-2": (1.0,)}


def curve(trial_id: int, *, loss: float) -> dict[str, Any]:
    points = [[step, loss, loss] for step in range(5, 101, 5)]
    return {"trial_id": trial_id, "planned_steps": 100, "warmup_steps": 5, "batch_size": 1, "points": points}


def test_curves_are_replayed_under_the_tasks_own_early_exit(tmp_path: Path) -> None:
    path = tmp_path / "curves.json.gz"
    trials = [curve(trial_id, loss=1.0 + trial_id) for trial_id in range(24)]
    path.write_bytes(gzip.compress(json.dumps({"trials": trials}).encode()))
    shares = read_exit_shares(str(path), where="--exits", settings=EarlyExitSettings())
    assert len(shares) == 24
    # the best trials train to their end, the others leave after the warm-up
    assert max(shares) == 1.0
    assert 0 < min(shares) < 0.5


@pytest.mark.parametrize("content", [b"", b"{}", b'{"trials": [{}]}', b"\x1f\x8b broken"])
def test_a_file_that_holds_no_curves_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "curves.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match="record_curves"):
        read_exit_shares(str(path), where="--exits")
