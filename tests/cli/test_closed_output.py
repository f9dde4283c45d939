"""Verbs whose reader leaves early (``| head -1``) go on without a word, and end with the code of what they did."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from cohort.cli.main import main


def code_of(words: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    """Return the exit code of a command whose output is not read."""
    reading, writing = os.pipe()
    os.close(reading)
    with suppress(BrokenPipeError), os.fdopen(writing, "w") as closed:
        monkeypatch.setattr(sys, "stdout", closed)
        with pytest.raises(SystemExit) as caught:
            main(words)
        monkeypatch.undo()
    return int(caught.value.code or 0)


@pytest.mark.parametrize(
    "words",
    [
        ("--help",),
        ("--version",),
        ("status", "{run}"),
        ("status", "{run}", "--json"),
        ("status", "{run}", "--watch"),
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


def test_an_error_whose_message_cannot_be_shown_keeps_its_code(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # a closed pipe in JSON's place; a script still learns that the task is wrong
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
