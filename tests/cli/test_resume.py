"""``cohort resume`` after an interruption, and of a finished run."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cohort.runs.directory import RunDirectory
from tests.cli.command import cohort


def test_resuming_a_finished_run_shows_its_result(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = cohort(capsys, "resume", str(folder / "run"), "--json")
    assert code == 0
    assert json.loads(out)["best"]["trial"] in range(4)


def test_a_run_that_another_process_works_on_is_refused_as_tune_refuses_it(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(folder / "run", tmp_path / "run")
    with RunDirectory.open(run).lock():
        for command in (("resume", run), ("tune", folder / "task.yaml", "-o", run)):
            code, _, err = cohort(capsys, *command)
            assert code == 2, command
            assert f"cohort status {run} --watch" in err


def test_interrupted_and_resumed(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    # far more steps than are done before the signal
    command = [sys.executable, "-m", "cohort", "tune", str(folder / "task.yaml"), "-o", str(run), "--max_steps", "9000"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "training" in line and "running" in line:
                break
        # as when the terminal is closed, or an ssh connection breaks
        process.send_signal(signal.SIGHUP)
        rest = process.stderr.read()
        assert process.wait(timeout=60) == 128 + signal.SIGHUP
    assert "interrupted by SIGHUP; the state is saved" in rest
    assert f"cohort resume {run}" in rest
    assert "Traceback" not in rest
    code, out, _ = cohort(capsys, "status", str(run), "--json")
    assert code == 0
    assert json.loads(out)["state"] == "stopped"
    _, out, _ = cohort(capsys, "status", str(run))
    assert f"to continue from the last checkpoint: cohort resume {run}" in out
    # no process trains, so no trial does
    assert "interrupted" in out
    assert "running" not in out
    (run / "run.db").write_bytes(b"no database any more" * 100)
    code, _, err = cohort(capsys, "status", str(run))
    assert code != 0
    assert f"`cohort resume {run}` puts the copy of the last checkpoint in its place" in err
