"""A run directory somewhere else: copied after a stop or while the run goes on, its inputs moved along or elsewhere."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import threading
import time
from pathlib import Path

import pytest

from cohort.adapter_files.generate import GenerationSettings, generate_from_run
from cohort.cli.main import main
from cohort.core.errors import InputError
from cohort.engine.train.watching.progress import RunProgress
from cohort.engine.tune import RunOptions, resume, tune
from cohort.runs.reader import RunReader
from tests.end_to_end.tiny_tasks import Interrupting, Outcome, outcome_of, tiny_task, write_inputs

OFTEN = RunOptions(checkpoint_seconds=0.3, checkpoint_share=1.0)


class Slow(Interrupting):
    """Takes its time, so that there is some to copy in."""

    def update(self, progress: RunProgress) -> None:
        time.sleep(0.3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Inputs, an undisturbed run, and an interrupted one in ``runs/stopped``."""
    folder = write_inputs(tmp_path_factory.mktemp("first"))
    tune(tiny_task(folder), folder / "undisturbed")
    with pytest.raises(KeyboardInterrupt):
        tune(tiny_task(folder), folder / "runs" / "stopped", watcher=Interrupting(1))
    return folder


@pytest.fixture(scope="module")
def expected(folder: Path) -> Outcome:
    return outcome_of(folder / "undisturbed")


@pytest.fixture
def elsewhere(folder: Path, tmp_path: Path) -> Path:
    """The interrupted run with all inputs as on another machine: nothing is where it was."""
    shutil.copytree(folder, tmp_path / "there", ignore=shutil.ignore_patterns("undisturbed"))
    _forget_places(tmp_path / "there" / "runs" / "stopped", folder)
    return tmp_path / "there"


def _forget_places(run: Path, folder: Path) -> None:
    """Make as if ``folder`` were a place that this machine does not have."""
    text = (run / "task.yaml").read_text()
    assert str(folder) in text
    (run / "task.yaml").write_text(text.replace(str(folder), f"/not/here{folder}"))
    with contextlib.closing(sqlite3.connect(run / "run.db")) as connection:
        connection.execute("UPDATE facts SET value = replace(value, ?, ?)", (str(folder), f"/not/here{folder}"))
        connection.commit()


def test_with_its_inputs_moved_along_it_goes_on(elsewhere: Path, expected: Outcome) -> None:
    run = elsewhere / "runs" / "stopped"
    watcher = Interrupting()
    resume(run, watcher=watcher)
    assert outcome_of(run) == expected
    assert str(elsewhere / "train.jsonl") in (run / "task.yaml").read_text()
    with RunReader.open(run / "run.db") as reader:
        assert reader.facts().places.base_model == str(elsewhere / "model")
    # and once more from yet another place, now that it is done
    moved = elsewhere.rename(elsewhere.with_name("yet elsewhere")) / "runs" / "stopped"
    (moved.parent.parent / "train.jsonl").unlink()
    answers = generate_from_run(moved, ["1+1="], settings=GenerationSettings(max_new_tokens=2), trial_id=0).answers
    assert len(answers) == 1


def test_inputs_that_are_elsewhere_are_named(
    elsewhere: Path, tmp_path: Path, expected: Outcome, capsys: pytest.CaptureFixture[str]
) -> None:
    run = elsewhere / "runs" / "stopped"
    rows, model = tmp_path / "rows.jsonl", tmp_path / "weights"
    (elsewhere / "train.jsonl").rename(rows)
    (elsewhere / "model").rename(model)
    with pytest.raises(InputError) as caught:
        resume(run)
    first, second = caught.value.problems
    assert first.hint == f"Give its path: cohort resume {run} --model_name_or_path PATH"
    assert second.hint == f"Give its path: cohort resume {run} --dataset.train PATH"
    with pytest.raises(SystemExit) as exit_:
        main(["resume", str(run), "--dataset.train", str(rows), "--base_model", str(model)])
    assert exit_.value.code == 0, capsys.readouterr()
    assert outcome_of(run) == expected


def test_other_content_is_refused_with_the_difference(elsewhere: Path, tmp_path: Path) -> None:
    run = elsewhere / "runs" / "stopped"
    lines = (elsewhere / "train.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "other.jsonl").write_text("".join(lines[2:]))
    with pytest.raises(InputError) as caught:
        resume(run, places=["--dataset.train", str(tmp_path / "other.jsonl")])
    train = caught.value.problems[0]
    assert str(train.where) == f"dataset.train: {tmp_path / 'other.jsonl'}"
    assert ("22 rows read" in train.found, "24 rows read" in train.allowed) == (True, True)
    assert "cohort resume RUN_DIR --dataset.train PATH" in train.hint


def test_only_places_can_be_given(elsewhere: Path) -> None:
    with pytest.raises(InputError) as caught:
        resume(elsewhere / "runs" / "stopped", places=["--training.seed", "3"])
    (problem,) = caught.value.problems
    assert problem.found == "--training.seed, which would change the task of a run"


def test_copies_taken_while_the_run_goes_on_go_on_from_there(folder: Path, tmp_path: Path, expected: Outcome) -> None:
    home = tmp_path / "home"
    shutil.copytree(folder, home, ignore=shutil.ignore_patterns("undisturbed", "runs"))
    run = home / "runs" / "live"
    copies: list[Path] = []
    has_ended = threading.Event()

    def copy_again_and_again() -> None:
        while not has_ended.is_set():
            time.sleep(0.2)
            place = tmp_path / f"copy {len(copies)}"
            if len(list(run.glob("checkpoints/*.json"))) == 0:
                continue
            # files that come and go while they are copied are left out
            with contextlib.suppress(shutil.Error):
                shutil.copytree(home, place)
            copies.append(place)

    copying = threading.Thread(target=copy_again_and_again)
    copying.start()
    try:
        tune(tiny_task(home), run, options=OFTEN, watcher=Slow())
    finally:
        has_ended.set()
        copying.join()
    assert outcome_of(run) == expected
    home.rename(tmp_path / "gone")
    watcher = Interrupting()
    for place in copies[: 12 : max(1, len(copies) // 4)]:
        resume(place / "runs" / "live", watcher=watcher)
        assert outcome_of(place / "runs" / "live") == expected
    assert any("copied while it was running" in note for note in watcher.notes)
