"""Verbs whose reader leaves early (``| head -1``) go on without a word, and end with the code of what they did."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TextIO

import pytest

from cohort.cli.main import main
from tests.runs.small_run import write_small_run


def code_with(output: TextIO | None, words: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    """Return the exit code of a command with ``output`` as its stdout."""
    monkeypatch.setattr(sys, "stdout", output)
    with pytest.raises(SystemExit) as caught:
        main(words)
    monkeypatch.undo()
    return int(caught.value.code or 0)


def code_of(words: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    """Return the exit code of a command whose output is not read."""
    reading, writing = os.pipe()
    os.close(reading)
    with suppress(BrokenPipeError), os.fdopen(writing, "w") as closed:
        code = code_with(closed, words, monkeypatch)
    return code


@pytest.mark.parametrize(
    "words",
    [
        ("--help",),
        ("--version",),
        ("status", "{run}"),
        ("status", "{run}", "--json"),
        ("report", "{run}"),
        ("check", "{task}"),
        ("check", "{task}", "--resolved"),
        ("resume", "--help"),
        ("resume", "{run}"),
        ("doctor",),
    ],
    ids=" ".join,
)
def test_output_that_is_not_wanted_to_its_end_is_no_error(
    folder: Path, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    places = {"run": folder / "run", "task": folder / "task.yaml"}
    assert code_of([word.format(**places) for word in words], monkeypatch) == 0
    assert "Error" not in capsys.readouterr().err


def test_watching_a_run_ends_with_its_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory, _, _ = write_small_run(tmp_path / "run")
    words = ["status", str(directory.root), "--watch"]
    # as the process that trains it: the run goes on
    with directory.lock():
        assert code_with(None, words, monkeypatch) == 0
        monkeypatch.setattr("cohort.cli.status._WATCH_SECONDS", 0.01)
        assert code_of(words, monkeypatch) == 0


def test_a_process_without_output_checks_a_task(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert code_with(None, ["check", str(folder / "task.yaml")], monkeypatch) == 0


def test_an_error_whose_message_cannot_be_shown_keeps_its_code(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # --json prints errors on stdout, which is closed here; a script still learns by the code that the task is wrong
    assert code_of(["check", str(folder / "none.yaml"), "--json"], monkeypatch) == 2


def test_a_run_outlives_the_reader_of_its_output(task: Path, tmp_path: Path) -> None:
    # progress and results, as `cohort tune task.yaml 2>&1 | head -1` has them
    command = [sys.executable, "-m", "cohort", "tune", str(task), "-o", str(tmp_path / "run")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        process.stdout.close()
        assert process.wait(300) == 0, first
    assert (tmp_path / "run" / "best" / "adapter_model.safetensors").is_file()
    assert (tmp_path / "run" / "report.html").is_file()
