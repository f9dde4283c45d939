"""The page of a queue: states, ends and pauses, from what a queue's database says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from cohort.runs.directory import RunDirectory
from cohort.runs.lock import RunLock
from cohort.task_queue.page import write_queue_page
from cohort.task_queue.records import QueuedTask, RunStretch, TaskDecision, TaskState
from cohort.task_queue.store import QueueStore
from tests.runs.synthetic_run import SyntheticRun, write_synthetic_run

# two heads: one until 100, another from 1000 on
STATES: dict[str, dict[str, Any]] = {
    "done": {"state": TaskState.DONE, "planned_slot": 0, "planned_start": 10.0, "planned_end": 150.0},
    "failed": {"state": TaskState.FAILED, "reason": "KeyError", "planned_slot": 1, "planned_start": 10.0,
               "planned_end": 60.0},
    "later": {"state": TaskState.RUNNING, "planned_slot": 0, "planned_start": 120.0, "planned_end": 300.0},
    "held": {"state": TaskState.HELD, "reason": "train.jsonl changed"},
    "waits": {"state": TaskState.QUEUED},
}  # fmt: skip


@pytest.fixture
def queue(tmp_path: Path) -> Path:
    def plan(seconds: float, *names: str) -> TaskDecision:
        placements = [
            {"task": n, "slots": [0], "start_seconds": STATES[n]["planned_start"], "end_seconds": 0.0} for n in names
        ]
        return TaskDecision(seconds=seconds, kind="plan", task="", text="", numbers={"placements": placements})

    def began(seconds: float, none_since: float | None) -> TaskDecision:
        return TaskDecision(
            seconds=seconds, kind="dispatcher", task="", text="", numbers={"none_since_seconds": none_since}
        )

    with QueueStore.open(tmp_path / "queue.db", create=True) as store:
        store.add(
            [
                QueuedTask(name=name, source="", task={}, digests={}, priority=0, added_at="", **fields)
                for name, fields in STATES.items()
            ]
        )
        for decision in (
            began(0.0, None),
            plan(10.0, "done", "failed"),
            plan(50.0, "later"),
            began(1000.0, 100.0),
        ):
            store.record(decision)
        for task, slot, start, end, outcome in (
            ("done", 0, 10.0, 100.0, "the dispatcher died"),
            ("failed", 1, 10.0, 40.0, "failed"),
            ("done", 0, 1002.0, 1020.0, "done"),
            ("later", 0, 1030.0, None, ""),
        ):
            store.begin_stretch(RunStretch(task=task, slot_id=slot, device=f"cpu {slot}", start_seconds=start))
            if end is not None:
                store.end_stretches(task=task, seconds=end, outcome=outcome)
        store.set_facts(last_dispatcher_seconds=1060.0, request={"workers": 2})
    return tmp_path


def test_every_task_has_its_state_and_its_times(queue: Path) -> None:
    page = write_queue_page(queue).read_text()
    rows = [re.findall(r"<td>([^<]*)</td>", row) for row in re.findall(r"<tr>(<td>.*?)</tr>", page)]
    assert rows == [
        ["done", "done", "-", "10s to 2m 30s", "10s to 2m 00s", "2"],
        ["failed", "failed: KeyError", "-", "10s to 1m 00s", "10s to 40s", "1"],
        # nobody works it off: it does not run, and what is planned follows from when the plan was made
        ["later", "queued", "-", "2m 00s to 5m 00s", "2m 10s to 2m 40s", "1"],
        ["held", "held: train.jsonl changed", "-", "-", "-", "0"],
        ["waits", "queued", "-", "-", "-", "0"],
    ]
    assert "1 of 5<" in page
    assert "tasks done, 1 failed, 2 queued, 1 held" in page
    assert "pause of 15m 00s" in page
    with RunLock(queue / ".queue.lock"):
        assert "<td>later</td><td>running</td>" in write_queue_page(queue).read_text()


def test_the_legend_says_what_is_drawn(queue: Path) -> None:
    page = write_queue_page(queue).read_text()
    legend = page.partition('<ul class="key">')[2].partition("</ul>")[0]
    words = re.findall(r"</svg>([^<]*)</li>", legend)
    assert words == [
        "planned when first placed, without early exit",
        "what happened",
        "cut short: its worker, slot or dispatcher was lost",
        "failed",
        "done",
        "still running",
        "no process ran the queue: left out",
        *STATES,
    ]
    assert page.count('class="mark on-bar"') == 4


def test_a_queue_that_nobody_has_begun_has_a_page(tmp_path: Path) -> None:
    with QueueStore.open(tmp_path / "queue.db", create=True) as store:
        store.add([QueuedTask(name="a", source="", task={}, digests={}, priority=0, added_at="")])
    page = write_queue_page(tmp_path).read_text()
    assert "<td>a</td><td>queued</td><td>-</td><td>-</td><td>-</td><td>0</td>" in page


def test_a_task_that_ran_shows_its_metric_and_links_its_report(queue: Path) -> None:
    directory = RunDirectory.create(queue / "done")
    write_synthetic_run(directory.database, SyntheticRun(trials=8, steps=20))
    page = write_queue_page(queue).read_text()
    assert re.search(r"<td>done</td><td>done</td><td>validation loss [\d.]+</td>", page)
    assert "<a href" not in page
    directory.report.write_text("a report")
    assert '<td><a href="done/report.html">done</a></td>' in write_queue_page(queue).read_text()
