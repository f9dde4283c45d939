"""A run that is there: checked before anything is written, and its directory given back whatever happens."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from cohort.core.errors import InputError
from cohort.engine.run_resume import ready_to_resume
from cohort.engine.run_start import begun_run, new_directory, prepare_task
from cohort.engine.train.open_run import RunConditions
from cohort.engine.tune import resume, tune
from cohort.runs.directory import RunDirectory
from tests.end_to_end.tiny_tasks import Interrupting, TickingClock, tiny_task, write_inputs


def test_a_run_is_locked_from_its_check_to_its_end(tmp_path: Path) -> None:
    write_inputs(tmp_path)
    run = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        tune(tiny_task(tmp_path), run, watcher=Interrupting(3), clock=TickingClock())
    ready = ready_to_resume(run, RunConditions())
    assert ready is not None
    assert ready.facts is not None
    with ready:
        assert RunDirectory(run).lock().holder() is not None
    assert RunDirectory(run).lock().holder() is None
    (tmp_path / "train.jsonl").write_text('{"prompt": "a", "completion": "b"}\n' * 8)
    with pytest.raises(InputError):
        ready_to_resume(run, RunConditions())
    # one that is refused is as it was, and free
    assert RunDirectory(run).lock().holder() is None
    write_inputs(tmp_path)
    resume(run)
    assert ready_to_resume(run, RunConditions()) is None


def test_a_copy_of_a_killed_run_keeps_its_task_as_the_run_does(tmp_path: Path) -> None:
    write_inputs(tmp_path)
    task, run = tiny_task(tmp_path), tmp_path / "run"
    conditions = RunConditions()
    # killed after its first checkpoint, the only one whose copy of the record is older than the first step
    with new_directory(run, task) as directory, begun_run(prepare_task(task, conditions), directory, conditions):
        pass
    copy = Path(shutil.copytree(run, tmp_path / "copy"))
    for place in (run, copy):
        text = (place / "task.yaml").read_text()
        (place / "task.yaml").write_text(text.replace("batch_size: 2", "batch_size: 3"))
        assert (place / "task.yaml").read_text() != text
        with pytest.raises(InputError, match=r"training\.batch_size: found 3; allowed: 2, as when the run began"):
            ready_to_resume(place, RunConditions())
        (place / "task.yaml").write_text(text)
        ready = ready_to_resume(place, RunConditions())
        assert ready is not None
        with ready:
            assert ready.facts is not None
