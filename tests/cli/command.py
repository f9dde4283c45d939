"""The command line as tests call it."""

from __future__ import annotations

from pathlib import Path

import pytest

from cohort.cli.main import main

__all__ = ["cohort"]


def cohort(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    """Return exit code, stdout and stderr of ``cohort`` with these arguments."""
    with pytest.raises(SystemExit) as caught:
        main([str(argument) for argument in arguments])
    shown = capsys.readouterr()
    return int(caught.value.code or 0), shown.out, shown.err
