"""Torchrun's own report ends with the words of the error."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from cohort.cli.exits import exits
from cohort.core.errors import InputError, Problem

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
