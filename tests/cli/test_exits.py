"""What becomes of an exception: message, exit code, the line to resume."""

from __future__ import annotations

import errno
import signal
from pathlib import Path

import pytest
import typer
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from cohort.cli.exits import exits, format_input_error
from cohort.core.errors import InputError, InUseError, Problem, RunStateError, StorageFullError
from cohort.core.process.interrupts import Interrupted

PROBLEM = Problem(where="task.yaml:3: lora.r", found="0", allowed="a whole number", hint="Write r: 16.")


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (InputError(PROBLEM), 2, "hint     Write r: 16."),
        (RunStateError("the database is damaged"), 1, "error: the database is damaged"),
        (StorageFullError("no space left"), 2, "error: no space left"),
        (OSError(errno.ENOSPC, "No space left on device", "/runs/x"), 2, "no space is left at /runs/x"),
        (PermissionError(errno.EACCES, "Permission denied", "/runs/x"), 1, "not allowed at /runs/x"),
        (OSError(errno.ENAMETOOLONG, "File name too long", "a" * 300), 2, f"error: {'a' * 120}... is no path that"),
        (NotADirectoryError(errno.ENOTDIR, "Not a directory", "/runs/x/y"), 2, "/runs/x/y is no path that can be used"),
        (InUseError("runs/x is in use by process 7"), 2, "error: runs/x is in use by process 7"),
        (BrokenPipeError(errno.EPIPE, "Broken pipe"), 1, "error: a process that this one was writing to has ended"),
        (KeyboardInterrupt(), 130, "interrupted by Ctrl-C"),
        (Interrupted(signal.SIGINT), 130, "interrupted by Ctrl-C"),
        (Interrupted(signal.SIGTERM), 143, "interrupted by SIGTERM"),
        (Interrupted(signal.SIGHUP), 129, "interrupted by SIGHUP"),
    ],
)
def test_an_exception_becomes_a_message_and_a_code(
    error: BaseException, code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit) as caught, exits():
        raise error
    assert caught.value.exit_code == code
    shown = capsys.readouterr()
    assert words in shown.err
    assert "Traceback" not in shown.err
    assert shown.out == ""


def test_an_interruption_that_was_wrapped_is_one(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as caught, exits():
        raise RuntimeError("Error calling __set_name__") from Interrupted(signal.SIGTERM)
    assert caught.value.exit_code == 143
    assert capsys.readouterr().err.startswith("interrupted by SIGTERM")


def test_our_own_bugs_are_not_hidden() -> None:
    with pytest.raises(ZeroDivisionError), exits():
        _ = 1 / 0
    with pytest.raises(FileNotFoundError), exits():
        raise FileNotFoundError(errno.ENOENT, "x")


def test_an_interruption_names_the_line_to_resume(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit), exits(resume=tmp_path):
        raise KeyboardInterrupt
    said = capsys.readouterr().err
    assert "cohort resume" not in said, "nothing was saved, so nothing can be resumed"
    assert "Start again with the same command" in said
    (tmp_path / "task.yaml").touch()
    with pytest.raises(typer.Exit), exits(resume=tmp_path):
        raise Interrupted(signal.SIGTERM)
    said = capsys.readouterr().err
    assert f"before training; nothing was to be saved. To continue:\n\n    cohort resume {tmp_path}" in said
    (tmp_path / "run.db").touch()
    with pytest.raises(typer.Exit), exits(resume=tmp_path):
        raise KeyboardInterrupt
    assert f"the state is saved. To continue:\n\n    cohort resume {tmp_path}" in capsys.readouterr().err
    with pytest.raises(typer.Exit), exits(resume=tmp_path):
        raise Interrupted(signal.SIGTERM, is_at_once=True)
    assert "at once by another SIGTERM; what came after the last checkpoint is done again" in capsys.readouterr().err


def test_an_exit_of_a_verb_stays_what_it_is() -> None:
    with pytest.raises(SystemExit) as caught, exits():
        raise SystemExit(3)
    assert caught.value.code == 3


def test_one_problem_and_several() -> None:
    assert format_input_error(InputError(PROBLEM)).startswith("error: 1 problem in")
    keys = f"the keys {', '.join('abcdefgh' * 8)}"
    unknown = [Problem(where=f"t.yaml:{line}: x{line}", found="x", allowed=keys, hint="Remove it.") for line in (1, 2)]
    assert format_input_error(InputError(unknown)).count(keys) == 1
    assert "    allowed  as for t.yaml:1: x1\n" in format_input_error(InputError(unknown))
    several = format_input_error(InputError([PROBLEM, PROBLEM]))
    assert several.startswith("error: 2 problems in")
    assert several.count("allowed  a whole number") == 2


def test_a_thousand_problems_are_counted_and_not_all_shown() -> None:
    many = [Problem(where=f"tensor {number}", found="1", allowed="2", hint="Fetch it again.") for number in range(1000)]
    text = format_input_error(InputError(many))
    assert text.startswith("error: 1000 problems in the input")
    assert text.endswith("and 950 more; --json lists all")
    assert "tensor 49\n" in text
    assert "tensor 50\n" not in text


PROBLEM = Problem(where="task.yaml:3: lora.r", found="0", allowed="a whole number", hint="Write r: 16.")


def test_torchrun_reports_what_was_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(file))
    # torchrun did not start this process: the name alone was inherited
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    with pytest.raises(typer.Exit), exits():
        raise InputError(PROBLEM)
    assert not file.exists()
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    with pytest.raises(typer.Exit) as ended, exits():
        raise InputError(PROBLEM)
    assert ended.value.exit_code == 2
    failure = ProcessFailure(local_rank=0, pid=1, exitcode=2, error_file=str(file))
    report = str(ChildFailedError("cohort", {0: failure}))
    last = report[report.index("traceback :") :]
    assert [line.strip() for line in last.splitlines() if "lora.r" in line or "hint" in line] == [
        "task.yaml:3: lora.r",
        "hint     Write r: 16.",
    ]
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "no such folder" / "file"))
    with pytest.raises(typer.Exit), exits():
        raise InputError(PROBLEM)
