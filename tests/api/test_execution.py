"""How checked tasks are carried out: in turn, with failures kept apart, or refused where a queue cannot do it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cohort.api import execution
from cohort.api.execution import RunCall, results_of, run_as_queue, run_in_turn
from cohort.core.errors import CohortError, InputError
from cohort.engine.callbacks.callbacks import Callbacks
from cohort.engine.tune import RunOptions
from cohort.runs.directory import RunDirectory
from cohort.runs.results.task_result import TasksFailedError

CALL = RunCall(callbacks=Callbacks(), progress=False, watcher=None, options=RunOptions(), clock=None)


class Engine:
    """Stands in for the engine: keeps what was begun and resumed, and fails at tasks that are said to be bad."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.did: list[tuple[str, str]] = []
        monkeypatch.setattr(execution, "tune", self._tune)
        monkeypatch.setattr(execution, "resume", self._resume)
        monkeypatch.setattr(execution, "places_of", lambda file, directory: (f"--place={file}",))

    def _tune(self, file: str, root: Path, **_: Any) -> None:
        self.did.append(("tune", root.name))
        if file == "bad":
            raise CohortError("no trial had a finite loss")
        if file == "interrupted":
            raise KeyboardInterrupt

    def _resume(self, root: Path, *, places: tuple[str, ...], **_: Any) -> None:
        self.did.append(("resume", f"{root.name} {places[0]}"))


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    return Engine(monkeypatch)


def run(folder: Path, files: Mapping[str, Any], *, resumed: tuple[str, ...] = ()) -> dict[str, CohortError]:
    return run_in_turn(files, {name: folder / name for name in files}, resumed=resumed, call=CALL)


def test_tasks_run_in_the_order_given_and_those_that_began_go_on(tmp_path: Path, engine: Engine) -> None:
    assert run(tmp_path, {"one": "x", "two": "y", "three": "z"}, resumed=("two",)) == {}
    assert engine.did == [("tune", "one"), ("resume", "two --place=y"), ("tune", "three")]


def test_a_failed_task_does_not_keep_the_others_from_their_results(tmp_path: Path, engine: Engine) -> None:
    failures = run(tmp_path, {"one": "x", "two": "bad", "three": "z"})
    assert {name: str(error) for name, error in failures.items()} == {"two": "no trial had a finite loss"}
    assert engine.did[-1] == ("tune", "three")


def test_the_only_task_raises_its_own_error(tmp_path: Path, engine: Engine) -> None:
    with pytest.raises(CohortError, match="finite loss"):
        run(tmp_path, {"two": "bad"})


def test_an_interruption_ends_all(tmp_path: Path, engine: Engine) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, {"one": "interrupted", "two": "y"})
    assert engine.did == [("tune", "one")]


def test_a_run_that_is_not_resumed_is_removed_first(tmp_path: Path, engine: Engine) -> None:
    directory = RunDirectory.create(tmp_path / "one")
    directory.task_file.write_text("")
    (directory.root / ".lock").touch()
    run(tmp_path, {"one": "x"})
    assert not directory.task_file.exists()
    # files that are no run's are left to the check that refuses them
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "notes.txt").touch()
    run(tmp_path, {"two": "x"})
    assert (tmp_path / "two" / "notes.txt").exists()


def test_callbacks_are_refused_where_other_processes_train(tmp_path: Path) -> None:
    call = RunCall(callbacks=Callbacks(on_step=print), progress=None, watcher=None, options=None, clock=None)
    with pytest.raises(InputError, match=r"on_step for several tasks on several GPUs.*total_gpus=1"):
        run_as_queue({}, tmp_path / "queue", num_gpus=2, call=call)
    assert not (tmp_path / "queue").exists()


def test_results_are_in_the_order_asked_for_and_survive_failures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution, "read_task_result", lambda path, *, name: f"{name} in {path.name}")
    directories = {name: tmp_path / name for name in ("one", "two", "three")}
    found: list[Any] = list(results_of(["three", "one"], directories, {}))
    assert found == ["three in three", "one in one"]
    error = CohortError("lost")
    with pytest.raises(TasksFailedError) as caught:
        results_of(list(directories), directories, {"two": error})
    results: dict[str, Any] = dict(caught.value.results)
    assert results == {"one": "one in one", "three": "three in three"}
    assert caught.value.failures == {"two": error}
