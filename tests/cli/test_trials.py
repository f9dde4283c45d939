"""``cohort trials``: the list, what it asks of a run, and what it refuses before anything is asked."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path

import pytest

from cohort.engine.tune import resume, tune
from cohort.runs.lock import RunLock
from cohort.runs.reader import RunReader
from cohort.runs.requests.trial_requests import Answer, RequestSpool
from tests.cli.command import cohort
from tests.end_to_end.tiny_tasks import Interrupting, TickingClock, tiny_task, write_inputs


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of six trials of eight steps that was stopped on its way."""
    folder = write_inputs(tmp_path_factory.mktemp("tiny"))
    with pytest.raises(KeyboardInterrupt):
        tune(tiny_task(folder, early_exit="none"), folder / "run", watcher=Interrupting(6), clock=TickingClock())
    return folder / "run"


@pytest.fixture
def run(interrupted: Path) -> Path:
    """The same run with nothing asked of it."""
    shutil.rmtree(interrupted / "requests", ignore_errors=True)
    return interrupted


def asked(run: Path) -> list[str]:
    spool = RequestSpool(run / "requests")
    return [request.text for name in spool.waiting() if (request := spool.read(name)) is not None]


def test_the_list_is_in_the_order_of_numbers(capsys: pytest.CaptureFixture[str], run: Path) -> None:
    code, shown, _ = cohort(capsys, "trials", run)
    assert code == 0
    rows = [line.split() for line in shown.splitlines()]
    assert [row[1] for row in rows if row and row[0].isdigit()] == [str(number) for number in range(6)]
    # the process that trained them is gone
    assert "running" not in shown
    body = json.loads(cohort(capsys, "trials", run, "--json")[1])
    assert body["state"] == "stopped"
    assert len(body["trials"]) == 6


def test_what_is_asked_of_a_stopped_run_waits_for_its_resume(capsys: pytest.CaptureFixture[str], run: Path) -> None:
    code, shown, _ = cohort(capsys, "trials", run, "stop", "1", "4")
    assert (code, asked(run)) == (0, ["stop trial 1", "stop trial 4"])
    assert f"`cohort resume {run}` takes it up first" in shown
    code, shown, _ = cohort(capsys, "trials", run, "clone", "2", "--learning_rate", "3e-4", "--warm-start", "--json")
    not_yet = {"is_taken_up": False, "is_training": False}
    assert json.loads(shown) == {"request": "clone trial 2", "values": {"learning_rate": 3e-4}, **not_yet}
    code, shown, _ = cohort(capsys, "trials", run, "add", "--r=8", "--lora.lora_alpha", "4r", "--wait", "1")
    assert shown.startswith("add a trial with r 8, lora_alpha 4r: asked; ")
    assert (code, asked(run)[2:]) == (0, ["clone trial 2", "add a trial"])
    copy = run.parent / "resumed"
    shutil.copytree(run, copy)
    resume(copy)
    with RunReader.open(copy / "run.db") as reader:
        trials = reader.trials()
    assert [trial.reason for trial in trials if trial.status == "stopped"] == ["stopped by user"] * 2
    assert [dict(trial.parameters) for trial in trials[6:]] == [
        {"learning_rate": 3e-4, "r": 2, "lora_alpha": 4, "batch_size": 2},
        {"learning_rate": 2e-4, "r": 8, "lora_alpha": 32, "batch_size": 2},
    ]


def test_the_answer_of_the_run_is_printed(capsys: pytest.CaptureFixture[str], run: Path) -> None:
    spool, answered = RequestSpool(run / "requests"), threading.Event()

    def train() -> None:
        while not answered.is_set():
            for name in spool.waiting():
                spool.answer(name, Answer(text="trial 3 stopped after step 5", trial_id=3))
                answered.set()

    with RunLock(run / ".lock"):
        thread = threading.Thread(target=train)
        thread.start()
        code, shown, _ = cohort(capsys, "trials", run, "stop", "3")
        answered.set()
        thread.join()
        assert (code, shown) == (0, "trial 3 stopped after step 5\n")
        # a run that is busy with a long step answers later
        code, shown, _ = cohort(capsys, "trials", run, "stop", "3", "--wait", "0")
    assert code == 0
    assert "takes it up after its present step" in shown


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (["halt", "1"], "'halt'"),
        (["stop"], "no trial"),
        (["stop", "99"], "trial 99"),
        (["resume", "1"], "trial 1, which is running after"),
        (["stop", "1", "--learning_rate", "1e-4"], "--learning_rate"),
        (["stop", "1", "--warm-start"], "stop"),
        (["add", "1"], "trial 1"),
        (["add", "--max_length", "64"], "dataset.max_length, which is the same for all trials of a run"),
        (["add", "--lerning_rate", "1e-4"], "the unknown option --lerning_rate"),
        (["add", "--learning_rate", "-1"], "-1"),
        (["add", "--learning_rate", "fast", "--r", "0"], "'fast'"),
        (["add", "--r", "4096"], "4096"),
        (["add", "--batch_size", "100000"], "100000"),
        (["clone", "1", "--batch_size", "19"], "19"),
        (["add", "--num_train_epochs", "2"], "epochs, but the steps of this run's trials"),
        (["clone", "1"], "the hyperparameters of trial 1"),
        (["clone", "1", "--r", "8", "--warm-start"], "8 with the weights of rank 4"),
        (["--learning_rate", "1e-4"], "--learning_rate"),
    ],
)
def test_what_cannot_be_done_is_refused_before_anything_is_asked(
    capsys: pytest.CaptureFixture[str], run: Path, arguments: list[str], found: str
) -> None:
    code, _, shown = cohort(capsys, "trials", run, *arguments)
    assert code == 2
    assert f"found    {found}" in shown
    assert asked(run) == []


def test_the_action_before_the_directory_is_put_right(capsys: pytest.CaptureFixture[str], run: Path) -> None:
    code, _, shown = cohort(capsys, "trials", "stop", run, "3", "4")
    assert code == 2
    assert f"Write `cohort trials {run} stop 3 4`." in shown


def test_several_trials_are_checked_before_the_first_is_asked_for(
    capsys: pytest.CaptureFixture[str], run: Path
) -> None:
    code, _, shown = cohort(capsys, "trials", run, "stop", "1", "98", "99")
    assert code == 2
    assert "2 problems in the input" in shown
    assert asked(run) == []


def test_a_finished_run_and_a_queue_are_refused(
    capsys: pytest.CaptureFixture[str], folder: Path, tmp_path: Path
) -> None:
    code, _, shown = cohort(capsys, "trials", folder / "run", "stop", "1")
    assert code == 2
    assert "a run whose trials have all ended" in shown
    code, _, shown = cohort(capsys, "trials", tmp_path)
    assert code == 2
    assert "run.db" in shown
