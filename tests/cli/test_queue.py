"""``cohort queue`` adds, lists and removes tasks; no worker is started here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cohort.task_queue.records import TaskState
from cohort.task_queue.store import open_queue
from tests.cli.command import cohort
from tests.cli.tiny_task import TASK


def test_tasks_are_added_listed_and_removed(task: Path, queue: str, capsys: pytest.CaptureFixture[str]) -> None:
    urgent = task.with_name("urgent.yaml")
    urgent.write_text(TASK + "priority: 3\n")
    code, out, err = cohort(capsys, "queue", "add", str(task), str(urgent), "-o", queue)
    assert (code, err) == (0, "")
    assert out == f"added task\nadded urgent, priority 3\nto run it: cohort run -o {queue}\n"

    # the same files again are the same tasks
    _, out, _ = cohort(capsys, "queue", "add", str(task), "-o", queue)
    assert "nothing to add" in out

    code, out, _ = cohort(capsys, "queue", "remove", "task", "-o", queue)
    assert (code, out) == (0, "removed task\n")
    code, _, err = cohort(capsys, "queue", "remove", "task", "missing", "-o", queue)
    assert code == 2
    assert "a task that is removed" in err
    assert "no task of that name" in err

    code, out, _ = cohort(capsys, "status", queue)
    assert code == 0
    assert "1 queued, 1 removed" in out
    assert f"to continue: cohort resume {queue}" in out
    _, out, _ = cohort(capsys, "queue", "list", "-o", queue, "--json")
    listed = {entry["name"]: entry for entry in json.loads(out)["tasks"]}
    assert listed["urgent"]["state"] == "queued"
    assert listed["urgent"]["priority"] == 3
    # a head that was killed leaves its tasks as running: no worker trains them now
    with open_queue(Path(queue)) as store:
        store.update("urgent", state=TaskState.RUNNING)
    assert "1 queued, 1 removed" in cohort(capsys, "status", queue)[1]
    # the process that runs the queue knows the hardware, and predicts it then
    assert listed["urgent"]["expected_seconds"] is None

    # naming a removed task puts it back
    _, out, _ = cohort(capsys, "queue", "add", str(task), "-o", queue)
    assert out.startswith("added task\n")


def test_tasks_of_one_name_get_their_folders_names(task: Path, queue: str, capsys: pytest.CaptureFixture[str]) -> None:
    folder = task.parent / "other"
    folder.mkdir()
    (folder / "task.yaml").write_text(TASK.replace("model\n", "../model\n").replace("train.jsonl", "../train.jsonl"))
    _, out, _ = cohort(capsys, "queue", "add", str(task), str(folder / "task.yaml"), "-o", queue)
    assert out.startswith("added task\nadded other-task\n")


def test_a_task_file_that_changed_is_refused_with_the_difference(
    task: Path, queue: str, capsys: pytest.CaptureFixture[str]
) -> None:
    cohort(capsys, "queue", "add", str(task), "-o", queue)
    # a comment is no difference
    task.write_text("# mine\n" + TASK)
    assert cohort(capsys, "queue", "add", str(task), "-o", queue)[0] == 0
    task.write_text(TASK.replace("max_steps: 6", "max_steps: 7"))
    with (task.parent / "train.jsonl").open("a") as rows:
        rows.write('{"prompt": "1+1=", "completion": "2"}\n')
    code, _, err = cohort(capsys, "run", str(task), "--workers", "1", "-o", queue)
    assert code == 2
    assert "training.max_steps" in err
    assert "6, as when it was added" in err
    assert "train.jsonl" in err
    assert f"cohort queue remove task -o {queue}" in err
    # the dispatcher would have held it back: that is no end, it can be taken off like any other
    with open_queue(queue) as store:
        store.update("task", state=TaskState.HELD, reason="changed")
    assert cohort(capsys, "queue", "remove", "task", "-o", queue)[0] == 0
    code, out, _ = cohort(capsys, "queue", "add", str(task), "-o", queue)
    assert (code, out.splitlines()[0]) == (0, "added task")


def test_a_directory_of_another_run_is_refused(task: Path, queue: str, capsys: pytest.CaptureFixture[str]) -> None:
    folder = Path(queue) / "task"
    folder.mkdir(parents=True)
    (folder / "notes.txt").write_text("mine")
    code, _, err = cohort(capsys, "queue", "add", str(task), "-o", queue)
    assert code == 2
    assert "files that are not a run's: notes.txt" in err


def test_no_queue_is_begun_in_the_directory_of_a_run(
    task: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "run.db").touch()
    for words in (("queue", "add", str(task)), ("run", str(task), "--workers", "1")):
        code, _, err = cohort(capsys, *words, "-o", str(tmp_path / "mine"))
        assert code == 2
        assert "the directory of one run" in err
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["run.db"]


def test_a_queue_is_no_run(task: Path, queue: str, capsys: pytest.CaptureFixture[str]) -> None:
    cohort(capsys, "queue", "add", str(task), "-o", queue)
    for words in (("generate", queue, "--prompt", "1+1="), ("export", queue)):
        code, _, err = cohort(capsys, *words)
        assert code == 2
        assert "a queue of tasks, not a run" in err
        assert f"See `cohort status {queue}`." in err
    (Path(queue) / "task").mkdir()
    (Path(queue) / "task" / "run.db").touch()
    code, _, err = cohort(capsys, "export", queue)
    assert code == 2
    assert f"Name one task's run, such as {queue}/task." in err
