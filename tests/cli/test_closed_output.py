"""Verbs whose reader leaves early (``| head -1``) end without a word and without an error."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from cohort.cli.main import main


def code_of(words: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    """Return the exit code of a command whose output is not read."""
    reading, writing = os.pipe()
    os.close(reading)
    # click wraps the stream of --help so that a process ends in silence; the stream itself is closed here
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
        ("report", "{run}"),
        ("check", "{task}"),
        ("check", "{task}", "--resolved"),
        ("resume", "--help"),
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


def test_results_that_cannot_be_shown_are_no_success(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # what would follow, such as publishing, was not done; as a shell counts a process that SIGPIPE ended
    assert code_of(["resume", str(folder / "run")], monkeypatch) == 141
    assert "Traceback" not in capsys.readouterr().err
