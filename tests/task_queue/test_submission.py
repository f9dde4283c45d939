"""Task files become tasks of a queue; a later change of a file or its rows is noticed, key by key."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from cohort.core.clock import ManualClock
from cohort.core.errors import InputError
from cohort.task_queue.records import QueuedTask, TaskState
from cohort.task_queue.submission import find_changes, read_submissions, task_of
from tests.end_to_end.tiny_tasks import tiny_data

CLOCK = ManualClock()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Task files whose model is never read."""
    (tmp_path / "model").mkdir()
    (tmp_path / "train.jsonl").write_text('{"prompt": "1+1=", "completion": "2"}\n' * 20)
    for name in ("first", "second"):
        (tmp_path / f"{name}.yaml").write_text(json.dumps(tiny_data(priority=3)))
    return tmp_path


def submit(folder: Path, *names: str, known: tuple[QueuedTask, ...] = ()) -> tuple[list[str], list[str]]:
    files = [folder / f"{name}.yaml" for name in names]
    new, again = read_submissions(files, known=known, directory=folder / "queue", clock=CLOCK)
    return [task.name for task in new], [task.name for task in again]


def first(folder: Path) -> QueuedTask:
    (task,), _ = read_submissions([folder / "first.yaml"], known=(), directory=folder / "queue", clock=CLOCK)
    return task


def test_a_task_is_kept_whole_whatever_becomes_of_its_file(folder: Path) -> None:
    task = first(folder)
    assert (task.name, task.priority, task.state) == ("first", 3, TaskState.QUEUED)
    assert set(task.digests) == {str(folder / "first.yaml"), str(folder / "train.jsonl")}
    (folder / "first.yaml").unlink()
    assert task_of(task).training.max_steps == 8


def test_messages_name_the_lines_of_the_file_that_was_added(folder: Path) -> None:
    (folder / "first.yaml").write_text("base_model: model\ndataset:\n  train: train.jsonl\n  max_length: 64\n")
    task = first(folder)
    assert str(task_of(task).where("dataset.max_length")) == f"{folder / 'first.yaml'}:4: dataset.max_length"
    assert task_of(task).where("model_name_or_path").line == 1
    (folder / "first.yaml").write_text("# another file by now\n")
    assert task_of(task).where("dataset.max_length").line is None


def test_the_same_command_again_continues(folder: Path) -> None:
    task = first(folder)
    assert submit(folder, "first", "second", known=(task,)) == (["second"], ["first"])
    # a task that was removed before it began is new
    removed = replace(task, state=TaskState.REMOVED)
    assert submit(folder, "first", known=(removed,)) == (["first"], [])


def test_every_problem_of_all_files_is_named(folder: Path) -> None:
    (folder / "queue" / "second").mkdir(parents=True)
    (folder / "queue" / "second" / "notes.txt").touch()
    with pytest.raises(InputError) as caught:
        submit(folder, "first", "first", "second", "missing")
    found = [problem.found for problem in caught.value.problems]
    assert len(found) == 3
    assert "the same file twice" in found
    assert any("notes.txt" in text for text in found)
    (folder / "queue" / "second" / "run.db").touch()
    with pytest.raises(InputError) as caught:
        submit(folder, "second")
    # `cohort run` has no --on-existing
    assert "overwrite" not in caught.value.problems[0].hint
    assert "Choose another directory with -o" in caught.value.problems[0].hint


def test_a_comment_is_no_change_and_a_value_is(folder: Path) -> None:
    task = first(folder)
    text = (folder / "first.yaml").read_text()
    (folder / "first.yaml").write_text("# mine\n" + text)
    assert find_changes(task, directory=folder / "queue") == []
    (folder / "first.yaml").write_text(text.replace('"max_steps": 8', '"max_steps": 9'))
    (change,) = find_changes(task, directory=folder / "queue")
    assert "training.max_steps" in str(change.where)
    assert "as when it was added" in change.allowed
    assert f"cohort queue remove first -o {folder / 'queue'}" in change.hint


def test_other_rows_are_a_change(folder: Path) -> None:
    task = first(folder)
    with (folder / "train.jsonl").open("a") as rows:
        rows.write('{"prompt": "1+2=", "completion": "3"}\n')
    (change,) = find_changes(task, directory=folder / "queue")
    assert "train.jsonl" in str(change.where)
    assert change.found.startswith("different content")
    (folder / "train.jsonl").unlink()
    (change,) = find_changes(task, directory=folder / "queue")
    assert change.found == "no such file"
