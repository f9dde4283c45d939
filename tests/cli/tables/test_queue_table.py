"""How a queue and its waiting tasks are shown."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from rich.console import Console

from cohort.cli.tables.queue_table import QUEUE_VIEW, queue_line, task_table
from cohort.runs.lock import RunLock
from cohort.task_queue.progress import QueueProgress, SlotView, TaskView
from cohort.task_queue.records import RunStretch, TaskDecision, TaskState
from cohort.task_queue.store import open_queue
from tests.cli.command import cohort
from tests.cli.tiny_task import TASK


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
    assert "waits for  a process that runs the queue" in out
    assert f"to continue: cohort resume {queue}" in out

    began = datetime.now(UTC) - timedelta(seconds=100)
    slots = {"first": (0, 50, 400), "second": (1, 60, 900), "third": (0, 400, 1000)}
    placements = [
        {"task": name, "slots": [slot], "start_seconds": start, "end_seconds": end}
        for name, (slot, start, end) in slots.items()
    ]
    with RunLock(Path(queue) / ".queue.lock"):
        with open_queue(queue) as store:
            store.set_facts(began_at=began)
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
    assert re.search(r"expected   to begin in about (5m 00s|4m 5\ds), or earlier if other tasks exit early", out)
    assert "takes      about 10m 00s, without early exit" in out
    assert told["ahead"] == ["first"]
    assert 240 < told["begins_in_seconds"] <= 300
    assert "waits for  the next plan" in late
    assert re.search(r"state +beginning on gpu 0", beginning)
    assert code == 2
    assert "the queue it belongs to" in err


PROGRESS = QueueProgress(
    now_seconds=65.0,
    tasks=(
        TaskView(name="a", priority=0, state=TaskState.DONE, best_value=1.25, planned_start=0.0, planned_end=50.0),
        TaskView(name="b", priority=0, state=TaskState.RUNNING, num_trials=8, num_ended=3, num_early=2, device="gpu 0"),
        TaskView(name="c", priority=0, state=TaskState.QUEUED, expected_start=65.0, expected_end=125.0),
    ),
    slots=(SlotView(slot_id=0, device="gpu 0", state="busy", task="b"),),
    end_seconds=125.0,
)


def test_a_line_of_a_queue_names_states_devices_and_the_time_left() -> None:
    assert queue_line(PROGRESS) == "[1m 05s] 1 running, 1 queued, 1 done | gpu 0: b | about 1m 00s left"
    assert queue_line(QueueProgress(now_seconds=0.0)) == "[0s] no tasks"


def test_the_table_has_a_column_of_priorities_only_where_they_differ_from_none() -> None:
    headings = [column.header for column in task_table(PROGRESS, width=200)[0].columns]
    assert headings == ["task", "state", "where", "trials", "steps", "best", "first planned", "actual"]
    urgent = replace(PROGRESS, tasks=(replace(PROGRESS.tasks[0], priority=3), *PROGRESS.tasks[1:]))
    assert "priority" in [column.header for column in task_table(urgent, width=200)[0].columns]


def test_a_queued_task_shows_when_it_is_expected() -> None:
    rows = list(zip(*(column.cells for column in task_table(PROGRESS, width=200)[0].columns), strict=True))
    assert rows[1][3] == "3/8 ended, 2 early"
    assert rows[2][-2:] == ("-", "about 1m 05s to 2m 05s")
    # it takes longer than predicted: no end in the past, no time left below zero
    late = replace(PROGRESS, now_seconds=200.0)
    (*_, actual) = task_table(late, width=200)[0].columns
    assert list(actual.cells)[2] == "about 1m 05s to 3m 20s"
    assert queue_line(late).endswith("about 0s left")


@pytest.mark.parametrize("width", [60, 80])
def test_a_narrow_table_keeps_names_states_and_numbers(width: int) -> None:
    long = replace(PROGRESS.tasks[1], name="a-rather-long-name-of-a-task", share_done=0.5, best_value=0.12345)
    table, left_out = task_table(replace(PROGRESS, tasks=(PROGRESS.tasks[0], long)), width=width)
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(table)
    shown = console.export_text()
    assert max(map(len, shown.splitlines())) <= width
    for words in ("running", "50 %", "0.1235", "done", "1.25"):
        assert words in shown
    _, _, rows = shown.partition("─ ")
    assert "".join(line[: line.find("  ", 2)].strip() for line in rows.splitlines()) == "aa-rather-long-name-of-a-task"
    assert ("first planned" in left_out) == (width == 60)


def test_a_low_screen_shows_the_tasks_that_have_not_ended() -> None:
    done = tuple(replace(PROGRESS.tasks[0], name=f"done{n}") for n in range(30))
    console = Console(width=120, record=True, file=io.StringIO())
    for part in QUEUE_VIEW.tables(replace(PROGRESS, tasks=(*done, *PROGRESS.tasks[1:])), 120, 14):
        console.print(part)
    shown = console.export_text()
    assert [name for name in ("b", "c") if f"\n {name} " in shown] == ["b", "c"]
    assert "and 27 more: cohort status shows all" in shown


def test_the_best_value_is_named_by_its_metric() -> None:
    tasks = (PROGRESS.tasks[0], replace(PROGRESS.tasks[1], best_value=0.5))
    progress = replace(PROGRESS, tasks=tasks)
    one, _ = task_table(progress, width=200, metric_labels={"a": "validation loss", "b": "validation loss"})
    assert "best validation loss" in [column.header for column in one.columns]
    several, _ = task_table(progress, width=200, metric_labels={"a": "validation loss", "b": "exact match"})
    (best,) = [column for column in several.columns if column.header == "best"]
    assert list(best.cells) == ["validation loss 1.25", "exact match 0.5"]
