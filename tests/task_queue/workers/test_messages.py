"""Messages survive the way through JSON."""

from __future__ import annotations

import json

import pytest

from cohort.task_queue.workers.messages import (
    DispatcherMessage,
    Heartbeat,
    Note,
    Ready,
    RunTask,
    StopTask,
    TaskDone,
    TaskError,
    TaskStopped,
    WorkerReport,
    as_message,
    read_message,
)


@pytest.mark.parametrize(
    "record",
    [
        RunTask(task="a", source="/a.yaml", resolved={"seed": 1}, run_directory="/runs/a", options={"keep": True}),
        StopTask(task="a"),
        Ready(process_id=7),
        Heartbeat(),
        Heartbeat(task="a", phase="training", steps_done=3, seconds_left=1.5, best_value=0.25),
        Note(task="a", text="line"),
        TaskDone(task="a"),
        TaskStopped(task="a"),
        TaskError(task="a", message="no such column", is_input_error=True),
    ],
)
def test_a_record_is_read_back_from_json(record: DispatcherMessage | WorkerReport) -> None:
    assert read_message(json.loads(json.dumps(as_message(record)))) == record


def test_an_unknown_kind_is_an_error() -> None:
    with pytest.raises(KeyError):
        read_message({"kind": "Gossip"})
