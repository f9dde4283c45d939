"""Best checkpoints that a finished run lacks are trained again, to the same bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

from cohort.core.errors import InputError
from cohort.engine.lost_checkpoints import train_again
from cohort.engine.tune import RunOptions, tune
from cohort.runs.reader import RunReader
from tests.cli.command import cohort
from tests.end_to_end.tiny_tasks import Asking, Interrupting, TickingClock, outcome_of, tiny_task, write_inputs


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, of which one trial began with weights of another."""
    folder = write_inputs(tmp_path_factory.mktemp("lost"))
    root = folder / "run"
    clone = {"kind": "clone", "trial_id": 1, "values": {"learning_rate": 2e-3}, "warm_start": True}
    asking = Asking(root, [(20, clone)])
    tune(tiny_task(folder), root, watcher=asking, clock=TickingClock(), options=RunOptions(token_budget=40))
    assert asking.asked
    return root


def best_files(run: Path) -> dict[int, Path]:
    with RunReader.open(run / "run.db") as reader:
        bests = {trial.trial_id: trial.best_step for trial in reader.trials()}
    return {n: run / f"trials/{n:04d}/best-{step:06d}.safetensors" for n, step in bests.items()}


def test_they_come_back_to_the_byte_and_nothing_else_changes(run: Path) -> None:
    files, before = best_files(run), outcome_of(run)
    content = {trial_id: path.read_bytes() for trial_id, path in files.items()}
    # the clone and its source among them, one gone and one torn
    lost = [0, 1, max(files)]
    for trial_id in lost:
        files[trial_id].unlink()
    files[0].write_bytes(content[0][:-8])
    watcher = Interrupting()
    train_again(run, [*lost, 2], watcher=watcher)
    assert {trial_id: path.read_bytes() for trial_id, path in files.items()} == content
    assert outcome_of(run) == before
    assert sum("steps again, with the losses on record" in note for note in watcher.notes) == 3
    assert any(note.startswith("the best checkpoint of trial 2 is there") for note in watcher.notes)


def test_what_cannot_be_is_refused_before_anything_is_read(run: Path) -> None:
    with pytest.raises(InputError, match="--trial: found 99, which is not a trial of this run") as found:
        train_again(run, [99])
    assert "one of 0, 1, 2" in str(found.value)


def test_the_command_trains_it_and_export_says_so(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with RunReader.open(run / "run.db") as reader:
        lost = next(trial.trial_id for trial in reader.trials() if trial.reason == "underperforming")
    best_files(run)[lost].unlink()
    export = ("export", run, "--trial", str(lost), "-o", tmp_path / "one")
    code, _, said = cohort(capsys, *export)
    assert code == 2
    assert f"cohort resume {run} --trial {lost}" in said
    assert cohort(capsys, "resume", run, "--trial", str(lost))[0] == 0
    assert cohort(capsys, *export)[0] == 0
    # as a machine that stopped leaves what was not yet on its disk
    best_files(run)[lost].write_bytes(bytes(best_files(run)[lost].stat().st_size))
    code, _, said = cohort(capsys, *export[:-1], tmp_path / "two")
    assert code != 0
    assert "is damaged" in said
    assert f"cohort resume {run} --trial {lost}" in said
    assert not (tmp_path / "two").exists()
    assert cohort(capsys, "resume", run, "--trial", str(lost))[0] == 0


def test_a_run_that_has_not_ended_is_continued_instead(run: Path, tmp_path: Path) -> None:
    other = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        tune(tiny_task(run.parent), other, watcher=Interrupting(6), clock=TickingClock())
    with pytest.raises(InputError, match="a run that has not ended"):
        train_again(other, [0])


def test_a_limit_keeps_the_best_of_those_that_lost_and_changes_no_result(run: Path, tmp_path: Path) -> None:
    losers = {
        "search": {"space": {"learning_rate": [1e-4, 1e-3, 1e-2, 3e-2], "r": [2, 4]}},
        "evaluation": {"finalists": 2},
    }
    runs = [tmp_path / f"{limit}" for limit in ("null", 0, 1)]
    for path, limit in zip(runs, (None, 0, 1), strict=True):
        task = tiny_task(run.parent, **losers, save_total_limit=limit)
        # a checkpoint at each step: what was written before goes
        tune(task, path, options=RunOptions(checkpoint_seconds=0.0))
    assert outcome_of(runs[1]) == outcome_of(runs[0]) == outcome_of(runs[2])
    kept = [{trial_id for trial_id, path in best_files(root).items() if path.is_file()} for root in runs]
    assert len(kept[0]) == 8
    assert len(kept[2]) == len(kept[1]) + 1 < 8
    assert len(list(runs[1].glob("trials/*/best-*"))) == len(kept[1])
    with RunReader.open(runs[0] / "run.db") as reader:
        lost = {t.trial_id: t.best_value or 0.0 for t in reader.trials() if t.trial_id not in kept[1]}
    assert kept[2] - kept[1] == {min(lost, key=lambda trial_id: lost[trial_id])}
    missing = max(lost, key=lambda trial_id: lost[trial_id])
    train_again(runs[1], [missing])
    assert best_files(runs[1])[missing].read_bytes() == best_files(runs[0])[missing].read_bytes()
