"""``cohort queue`` and the ways in which ``cohort run`` refuses: no worker is started here."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from cohort.cli.main import main
from cohort.runs.lock import RunLock
from cohort.task_queue.operations import open_queue
from cohort.task_queue.records import RunStretch, TaskDecision, TaskState
from tests.cli.tiny_task import TASK, write_tiny_task


@pytest.fixture
def task(tmp_path: Path) -> Path:
    return write_tiny_task(tmp_path)


@pytest.fixture
def queue(tmp_path: Path) -> str:
    return str(tmp_path / "runs")


def cohort(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Return exit code, stdout and stderr of ``cohort`` with these words."""
    with pytest.raises(SystemExit) as caught:
        main(list(arguments))
    shown = capsys.readouterr()
    return int(caught.value.code or 0), shown.out, shown.err


def test_tasks_are_added_listed_and_removed(task: Path, queue: str, capsys: pytest.CaptureFixture[str]) -> None:
    urgent = task.with_name("urgent.yaml")
    urgent.write_text(TASK + "priority: 3\n")
    code, out, err = cohort(capsys, "queue", "add", str(task), str(urgent), "-o", queue)
    assert (code, err) == (0, "")
    assert out == f"added task\nadded urgent, priority 3\nto work it off: cohort run -o {queue}\n"

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
    assert f"to go on: cohort resume {queue}" in out
    _, out, _ = cohort(capsys, "queue", "list", "-o", queue, "--json")
    listed = {entry["name"]: entry for entry in json.loads(out)["tasks"]}
    assert listed["urgent"]["state"] == "queued"
    assert listed["urgent"]["priority"] == 3
    # a head that was killed leaves its tasks as running: nobody works on them now
    with open_queue(Path(queue)) as store:
        store.update("urgent", state=TaskState.RUNNING)
    assert "1 queued, 1 removed" in cohort(capsys, "status", queue)[1]
    # whoever works it off knows on what, and predicts it
    assert listed["urgent"]["expected_seconds"] is None

    # whoever names a removed task wants it back
    _, out, _ = cohort(capsys, "queue", "add", str(task), "-o", queue)
    assert out.startswith("added task\n")


def test_the_status_of_a_task_that_waits_says_for_what_and_until_when(
    task: Path, queue: str, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["first", "second", "third", "late"]
    files = [task.with_name(f"{name}.yaml") for name in names]
    for file in files:
        file.write_text(TASK)
    cohort(capsys, "queue", "add", *map(str, files), "-o", queue)
    code, out, err = cohort(capsys, "status", f"{queue}/third")
    assert (code, err) == (0, "")
    assert "state      queued, its run has not begun" in out
    assert "waits for  somebody to work the queue off" in out
    assert f"to go on: cohort resume {queue}" in out

    began = datetime.now(UTC) - timedelta(seconds=100)
    slots = {"first": (0, 50, 400), "second": (1, 60, 900), "third": (0, 400, 1000)}
    placements = [
        {"task": name, "slots": [slot], "start_seconds": start, "end_seconds": end}
        for name, (slot, start, end) in slots.items()
    ]
    with RunLock(Path(queue) / ".queue.lock"):
        with open_queue(queue) as store:
            store.set_facts({"began_at": began.isoformat()})
            store.update("first", state=TaskState.RUNNING)
            store.update("third", expected_seconds=600.0)
            store.begin_stretch(RunStretch(task="first", slot_id=0, device="gpu 0", start_seconds=50.0))
            plan = TaskDecision(seconds=60.0, kind="plan", task="", text="", numbers={"placements": placements})
            store.record(plan)
        _, out, _ = cohort(capsys, "status", f"{queue}/third")
        told = json.loads(cohort(capsys, "status", f"{queue}/third", "--json")[1])
        _, late, _ = cohort(capsys, "status", f"{queue}/late")
        _, beginning, _ = cohort(capsys, "status", f"{queue}/first")
        code, _, err = cohort(capsys, "status", f"{queue}/missing")
    assert "waits for  the end of first (runs on gpu 0)" in out
    assert re.search(r"expected   to begin in about (5m 00s|4m 5\ds); early exits of others move it up", out)
    assert "takes      about 10m 00s, without early exit" in out
    assert told["ahead"] == ["first"]
    assert 240 < told["begins_in_seconds"] <= 300
    assert "waits for  the next plan" in late
    assert re.search(r"state +beginning on gpu 0", beginning)
    assert code == 2
    assert "the queue beside it" in err


def test_tasks_of_one_name_get_their_folders_names(task: Path, queue: str, capsys: pytest.CaptureFixture[str]) -> None:
    folder = task.parent / "other"
    folder.mkdir()
    (folder / "task.yaml").write_text(TASK.replace("model\n", "../model\n").replace("train.jsonl", "../train.jsonl"))
    _, out, _ = cohort(capsys, "queue", "add", str(task), str(folder / "task.yaml"), "-o", queue)
    assert out.startswith("added task\nadded other-task\n")


def test_every_problem_of_every_file_is_named_and_nothing_is_added(
    task: Path, queue: str, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong, no_rows = task.with_name("wrong.yaml"), task.with_name("no_rows.yaml")
    wrong.write_text(TASK + "prority: 3\n")
    task.with_name("bad.jsonl").write_text('{"prompt": "1"}\n')
    no_rows.write_text(TASK.replace("train.jsonl", "bad.jsonl"))
    code, out, err = cohort(
        capsys, "run", str(wrong), str(no_rows), str(task), str(task), "--workers", "1", "-o", queue
    )
    assert (code, out) == (2, "")
    assert "did you mean priority" in err.lower()
    assert "the same file twice" in err
    assert not Path(queue).exists()
    code, _, err = cohort(capsys, "run", str(no_rows), "--workers", "1", "-o", queue)
    assert code == 2
    assert "bad.jsonl:1" in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--gpus", "0"], "For the CPU, write --workers N."),
        (["--workers", "0"], "1 or more"),
        (["--gpus", "1", "--workers", "1"], "one of the two"),
        (["--gpus", "64"], "64, but torch can use"),
        (["--workers", "1", "--stall-limit", "0"], "above 0"),
    ],
)
def test_no_slots_no_run(
    task: Path, queue: str, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    code, _, err = cohort(capsys, "run", str(task), "-o", queue, *arguments)
    assert code == 2
    assert said in err
    assert not Path(queue).exists()


def test_without_tasks_there_must_be_a_queue(queue: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = cohort(capsys, "run", "-o", queue, "--workers", "1")
    assert code == 2
    assert "cohort run TASK.yaml ..." in err
    code, _, err = cohort(capsys, "queue", "list", "-o", queue)
    assert code == 2
    assert "cohort run` or `cohort queue add" in err


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
    # the head would have held it back: that is no end, it can be taken off like any other
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


def test_a_queue_that_is_worked_off_takes_tasks_in_and_keeps_its_ways(
    task: Path, queue: str, capsys: pytest.CaptureFixture[str]
) -> None:
    cohort(capsys, "queue", "add", str(task), "-o", queue)
    with open_queue(queue) as store:
        store.set_facts({"request": {"workers": 2, "policy": "sjf"}})
    later = task.with_name("later.yaml")
    later.write_text(TASK)
    with RunLock(Path(queue) / ".queue.lock"):
        code, _, err = cohort(capsys, "run", "-o", queue, "--workers", "1")
        assert code == 1
        assert "in use by process" in err
        code, out, err = cohort(capsys, "run", str(later), "-o", queue, "--workers", "1")
    assert (code, err) == (0, "")
    assert out.startswith("added later\nprocess ")
    assert f"it goes on as it was begun, whatever this command says of it; to look on: cohort status {queue}" in out
    with open_queue(queue) as store:
        assert store.facts()["request"] == {"workers": 2, "policy": "sjf"}


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


def test_a_queue_that_has_ended_starts_no_worker(task: Path, queue: str, capsys: pytest.CaptureFixture[str]) -> None:
    cohort(capsys, "queue", "add", str(task), "-o", queue)
    cohort(capsys, "queue", "remove", "task", "-o", queue)
    for words in (("resume", queue), ("run", "-o", queue, "--workers", "1")):
        code, out, _ = cohort(capsys, *words)
        assert code == 0
        assert "1 removed" in out
    with open_queue(queue) as store:
        store.update("task", state=TaskState.FAILED, reason="by mistake")
    code, out, _ = cohort(capsys, "resume", queue)
    assert code == 1
    assert "by mistake" in out
    assert not (Path(queue) / "workers").exists()


def test_a_queue_is_no_run(task: Path, queue: str, capsys: pytest.CaptureFixture[str]) -> None:
    cohort(capsys, "queue", "add", str(task), "-o", queue)
    for words in (("generate", queue, "--prompt", "1+1="), ("export", queue)):
        code, _, err = cohort(capsys, *words)
        assert code == 2
        assert "a queue of tasks, not the run of one" in err
        assert f"See `cohort status {queue}`." in err
    (Path(queue) / "task").mkdir()
    (Path(queue) / "task" / "run.db").touch()
    code, _, err = cohort(capsys, "export", queue)
    assert code == 2
    assert f"Name one task's run, such as {queue}/task." in err


def test_an_unknown_policy_is_refused_with_those_there_are(
    task: Path, queue: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = cohort(capsys, "run", str(task), "--policy", "random", "-o", queue)
    assert code == 2
    for words in ("--policy", "random", "planned", "fcfs", "sjf", "ljf"):
        assert words in err
