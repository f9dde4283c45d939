"""What ``cohort run`` refuses, and how it treats a queue that runs or has ended; no worker is started here."""

from __future__ import annotations

from pathlib import Path

import pytest

from cohort.runs.lock import RunLock
from cohort.task_queue.records import TaskState
from cohort.task_queue.store import open_queue
from tests.cli.command import cohort
from tests.cli.tiny_task import TASK


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
        (["--workers", "5000"], "more workers would wait for each other"),
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


def test_a_queue_that_is_worked_off_takes_tasks_in_and_keeps_its_ways(
    task: Path, queue: str, capsys: pytest.CaptureFixture[str]
) -> None:
    cohort(capsys, "queue", "add", str(task), "-o", queue)
    with open_queue(queue) as store:
        store.set_facts(request={"workers": 2, "policy": "sjf"})
    later = task.with_name("later.yaml")
    later.write_text(TASK)
    with RunLock(Path(queue) / ".queue.lock"):
        code, _, err = cohort(capsys, "run", "-o", queue, "--workers", "1")
        assert code == 2
        assert "in use by process" in err
        code, out, err = cohort(capsys, "run", str(later), "-o", queue, "--workers", "1")
    assert (code, err) == (0, "")
    assert out.startswith("added later\nprocess ")
    assert (
        f"The running queue keeps its settings; this command's options are ignored. To watch it: cohort status {queue}"
        in out
    )
    with open_queue(queue) as store:
        assert store.facts().request == {"workers": 2, "policy": "sjf"}


def test_a_queue_that_has_ended_starts_no_worker(task: Path, queue: str, capsys: pytest.CaptureFixture[str]) -> None:
    cohort(capsys, "queue", "add", str(task), "-o", queue)
    cohort(capsys, "queue", "remove", "task", "-o", queue)
    for words in (("resume", queue), ("run", "-o", queue, "--workers", "1")):
        code, out, err = cohort(capsys, *words)
        assert code == 0
        assert "1 removed" in out
        assert ("have ended, so nothing is started" in err) == (words[0] == "run")
    with open_queue(queue) as store:
        store.update("task", state=TaskState.FAILED, reason="by mistake")
    code, out, _ = cohort(capsys, "resume", queue)
    assert code == 1
    assert "by mistake" in out
    assert not (Path(queue) / "workers").exists()


def test_an_unknown_policy_is_refused_with_those_there_are(
    task: Path, queue: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = cohort(capsys, "run", str(task), "--policy", "random", "-o", queue)
    assert code == 2
    for words in ("--policy", "random", "planned", "fcfs", "sjf", "ljf"):
        assert words in err
