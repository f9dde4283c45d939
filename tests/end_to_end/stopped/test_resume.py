"""Going on with a run: after a stop, after damage, with other inputs, and when there is nothing left to do."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from cohort.core.clock import ManualClock
from cohort.core.errors import InputError, RunStateError
from cohort.engine.tune import RunOptions, resume, tune
from cohort.machine.machine import package_versions
from cohort.runs.directory import RunDirectory
from cohort.runs.facts import RunState
from cohort.runs.reader import RunReader
from cohort.runs.store import RunStore
from tests.end_to_end.tiny_tasks import Interrupting, Outcome, outcome_of, tiny_data, tiny_task, write_inputs

# every tick makes a checkpoint
OPTIONS = RunOptions(checkpoint_seconds=0.0, checkpoint_share=math.inf, token_budget=40)


class TickingClock(ManualClock):
    """A second passes each time somebody looks, so that every tick is told to watchers."""

    def monotonic(self) -> float:
        self.advance(1.0)
        return super().monotonic()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_inputs(tmp_path_factory.mktemp("tiny"))
    tune(tiny_task(folder), folder / "undisturbed", options=OPTIONS)
    with pytest.raises(KeyboardInterrupt):
        tune(tiny_task(folder), folder / "stopped", options=OPTIONS, watcher=Interrupting(21), clock=TickingClock())
    return folder


@pytest.fixture(scope="module")
def expected(folder: Path) -> Outcome:
    return outcome_of(folder / "undisturbed")


@pytest.fixture
def stopped(folder: Path, tmp_path: Path) -> Path:
    """A copy of an interrupted run."""
    return Path(shutil.copytree(folder / "stopped", tmp_path / "run"))


def go_on(run: Path) -> list[str]:
    watcher = Interrupting()
    resume(run, watcher=watcher, options=OPTIONS)
    return watcher.notes


def test_an_interrupted_run_says_so_and_goes_on_bit_for_bit(stopped: Path, expected: Outcome) -> None:
    with RunReader.open(stopped / "run.db") as reader:
        assert reader.facts().state is RunState.INTERRUPTED
        assert 0 < len(reader.log.steps()) < len(expected["steps"])
        steps, evaluations = len(reader.log.steps()), len(reader.log.evaluations())
    # the tables do not wait for the end
    assert len((stopped / "metrics.jsonl").read_text().splitlines()) == steps + evaluations
    assert len((stopped / "results.csv").read_text().splitlines()) > 1
    assert [note for note in go_on(stopped) if "warning" in note] == []
    assert outcome_of(stopped) == expected


def test_interrupted_at_every_tick(folder: Path, tmp_path: Path, expected: Outcome) -> None:
    run = tmp_path / "run"
    acts: list[Callable[[Interrupting], None]] = [
        lambda watcher: tune(tiny_task(folder), run, options=OPTIONS, watcher=watcher, clock=TickingClock())
    ]
    times = 0
    for steps in itertools.count(1, 3):
        try:
            acts.pop()(Interrupting(steps))
            break
        except KeyboardInterrupt:
            times += 1
            acts.append(lambda watcher: resume(run, options=OPTIONS, watcher=watcher, clock=TickingClock()))
    assert times > 5
    assert outcome_of(run) == expected


def newest(run: Path, pattern: str) -> Path:
    return max(run.glob(pattern), key=lambda path: (path.stat().st_mtime_ns, path.name))


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(bytes(content))


def _halve(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


DAMAGES = {"flipped": _flip, "halved": _halve, "empty": lambda path: path.write_bytes(b""), "gone": Path.unlink}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("pattern", ["trials/*/state-*.safetensors", "checkpoints/*.json"])
def test_damage_to_the_newest_checkpoint_is_named_and_the_one_before_is_used(
    stopped: Path, expected: Outcome, damage: str, pattern: str
) -> None:
    path = newest(stopped, pattern)
    DAMAGES[damage](path)
    warnings = [note for note in go_on(stopped) if "warning" in note]
    assert len(warnings) == 1
    assert str(path) in warnings[0]
    assert "earlier checkpoint" in warnings[0]
    assert outcome_of(stopped) == expected


def test_no_whole_checkpoint_is_an_error_that_names_the_damage(stopped: Path) -> None:
    for path in stopped.glob("checkpoints/*.json"):
        _flip(path)
    with pytest.raises(RunStateError, match=r"no complete checkpoint is left .*\.json .*start again"):
        resume(stopped)


def _overwrite_pages(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[4096 : 3 * 4096] = b"\xa5" * (2 * 4096)
    path.write_bytes(bytes(content))


DATABASE_DAMAGES = {
    "torn": _halve,
    "empty": lambda path: path.write_bytes(b""),
    "gone": Path.unlink,
    "pages": _overwrite_pages,
    "text": lambda path: path.write_text("this is no database\n" * 1000),
}


@pytest.mark.parametrize("damage", DATABASE_DAMAGES)
def test_a_damaged_database_gives_way_to_its_copy(stopped: Path, expected: Outcome, damage: str) -> None:
    DATABASE_DAMAGES[damage](stopped / "run.db")
    warnings = [note for note in go_on(stopped) if "warning" in note]
    assert len(warnings) == 1
    assert "run.db" in warnings[0]
    assert "took its place" in warnings[0]
    assert outcome_of(stopped) == expected
    assert (stopped / "run.db.damaged").exists() == (damage != "gone")


def test_a_damaged_database_without_a_good_copy_is_an_error_that_names_it(stopped: Path) -> None:
    for path in [stopped / "run.db", *stopped.glob("checkpoints/*.db")]:
        _halve(path)
    with pytest.raises(RunStateError, match=r"run\.db"):
        resume(stopped)


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A folder with inputs of its own and an interrupted run."""
    folder = write_inputs(tmp_path / "own")
    with pytest.raises(KeyboardInterrupt):
        tune(tiny_task(folder), folder / "run", options=OPTIONS, watcher=Interrupting(9), clock=TickingClock())
    return folder


def test_changed_rows_are_refused(own: Path) -> None:
    rows = (own / "train.jsonl").read_text().splitlines()
    (own / "train.jsonl").write_text("\n".join(rows[:-4]))
    with pytest.raises(InputError) as caught:
        resume(own / "run")
    (train,) = caught.value.problems
    assert str(train.where) == f"dataset.train: {own / 'train.jsonl'}"
    assert "20 rows read in " in train.found
    assert "24 rows read in " in train.allowed
    (own / "train.jsonl").write_text("\n".join(rows) + "\n")
    go_on(own / "run")


def test_a_file_written_otherwise_with_the_same_rows_is_told_not_refused(own: Path) -> None:
    rows = (own / "train.jsonl").read_text().splitlines()
    (own / "train.jsonl").write_text("\n".join([f" {rows[0]}  ", "", *rows[1:]]))
    assert "dataset.train changed since the run began; the rows it uses are the same" in go_on(own / "run")


def test_a_changed_model_is_refused(own: Path) -> None:
    _flip(own / "model" / "model.safetensors")
    with pytest.raises(InputError) as caught:
        resume(own / "run")
    (problem,) = caught.value.problems
    assert str(problem.where) == f"model_name_or_path: {own / 'model'}"
    assert "base model's weights" in problem.found
    _flip(own / "model" / "model.safetensors")
    go_on(own / "run")


def test_another_version_of_torch_is_told_not_refused(stopped: Path, expected: Outcome) -> None:
    with contextlib.closing(RunStore.resume(stopped / "run.db")) as store:
        machine = store.reader.facts().machine
        store.set_facts(machine=replace(machine, versions={**package_versions(), "torch": "2.0.1"}))
    (warning,) = (note for note in go_on(stopped) if "warning" in note)
    assert "(was 2.0.1): the bits of the results may differ" in warning
    assert outcome_of(stopped) == expected


def test_a_changed_task_is_refused_key_by_key(stopped: Path) -> None:
    text = (stopped / "task.yaml").read_text()
    (stopped / "task.yaml").write_text(text.replace("seed: 0", "seed: 1").replace("max_steps: 8", "max_steps: 9"))
    with pytest.raises(InputError) as caught:
        resume(stopped)
    shown = {str(problem.where).split(": ")[1]: (problem.found, problem.allowed) for problem in caught.value.problems}
    assert shown == {
        "training.seed": ("1", "0, as when the run began"),
        "training.max_steps": ("9", "8, as when the run began"),
    }


def test_a_run_with_fewer_evaluation_times_goes_on_bit_for_bit(folder: Path, tmp_path: Path) -> None:
    task = tiny_task(folder, evaluation={"max_cost_fraction": 0.1})
    tune(task, tmp_path / "undisturbed", options=OPTIONS)
    with pytest.raises(KeyboardInterrupt):
        tune(task, tmp_path / "run", options=OPTIONS, watcher=Interrupting(21), clock=TickingClock())
    go_on(tmp_path / "run")
    outcome = outcome_of(tmp_path / "run")
    assert outcome == outcome_of(tmp_path / "undisturbed")
    assert {step for _, step in outcome["evaluations"]} == {2, 8}


def _files(run: Path) -> dict[str, str]:
    return {
        path.relative_to(run).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(run.rglob("*"))
        if path.is_file() and not path.name.startswith((".lock", "run.db"))
    }


def test_resuming_a_finished_run_changes_nothing(folder: Path, tmp_path: Path, expected: Outcome) -> None:
    run = Path(shutil.copytree(folder / "undisturbed", tmp_path / "run"))
    before = _files(run)
    go_on(run)
    assert _files(run) == before
    assert outcome_of(run) == expected
    (run / "results.csv").unlink()
    shutil.rmtree(run / "best")
    go_on(run)
    assert (run / "results.csv").is_file()
    assert outcome_of(run) == expected


def test_the_thread_count_is_kept(stopped: Path, expected: Outcome) -> None:
    with RunReader.open(stopped / "run.db") as reader:
        recorded = reader.facts().machine.threads
    assert recorded is not None
    assert recorded == torch.get_num_threads()
    torch.set_num_threads(recorded + 1)
    try:
        go_on(stopped)
        assert torch.get_num_threads() == recorded
    finally:
        torch.set_num_threads(recorded)
    assert outcome_of(stopped) == expected


def test_a_run_in_use_is_left_alone(stopped: Path) -> None:
    with RunDirectory.open(stopped).lock(), pytest.raises(RunStateError, match="is in use by process"):
        resume(stopped)


def test_a_run_killed_before_its_first_checkpoint_begins_again(folder: Path, tmp_path: Path, expected: Outcome) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / ".lock").touch()
    (run / "task.yaml").write_text(tiny_task(folder).resolved_yaml())
    with pytest.raises(InputError, match="already holds another run"):
        tune(tiny_task(folder), run)
    go_on(run)
    assert outcome_of(run) == expected


def test_a_run_killed_while_its_first_checkpoint_was_recorded_begins_again(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expected: Outcome
) -> None:
    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    run = tmp_path / "run"
    with monkeypatch.context() as patched:
        patched.setattr(RunStore, "record_checkpoint", killed)
        with pytest.raises(KeyboardInterrupt):
            tune(tiny_task(folder), run)
        # the next start is killed as well, when all that was there is gone
        patched.setattr("cohort.engine.run_resume.prepare_task", killed)
        with pytest.raises(KeyboardInterrupt):
            go_on(run)
    go_on(run)
    assert outcome_of(run) == expected


def test_no_run_at_all(tmp_path: Path) -> None:
    (tmp_path / "task.yaml").write_text(json.dumps(tiny_data()))
    with pytest.raises(InputError, match=r"run\.db"):
        resume(tmp_path)
