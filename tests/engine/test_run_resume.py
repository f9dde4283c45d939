"""A run that is there: checked before anything is written, and its directory given back whatever happens."""

from __future__ import annotations

from pathlib import Path

import pytest

from cohort.core.errors import InputError
from cohort.engine.run_resume import ready_to_resume
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
