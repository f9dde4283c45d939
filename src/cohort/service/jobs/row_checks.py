"""Reads clients' rows in a process of its own, with limits on memory and time."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from cohort.core.errors import CohortError

__all__ = ["CheckLimits", "CheckedRows", "RowsRefusedError", "check_rows"]


class RowsRefusedError(CohortError):
    """A client's file cannot be trained on; the message names lines and what they should be."""


@dataclass(frozen=True, kw_only=True)
class CheckLimits:
    """What reading one file may take.

    Attributes:
        memory_bytes: Address space of the process.
        seconds: Of the processor, and of the clock twice as many.
    """

    memory_bytes: int = 8 << 30
    seconds: int = 300


@dataclass(frozen=True, kw_only=True)
class CheckedRows:
    """A file that can be trained on.

    Attributes:
        is_chat: Whether its rows are conversations, which a chat template renders.
    """

    num_rows: int
    is_chat: bool


def check_rows(path: Path, *, method: str, shown: str, limits: CheckLimits) -> CheckedRows:
    """Read a file of rows and return what they are.

    Args:
        method: ``supervised``, ``dpo``, or what a task's objective reads of a row.
        shown: What messages call the file: its id, as paths are the server's.

    Raises:
        RowsRefusedError: it has wrong rows, none, or takes more than ``limits``.
    """
    order = {
        "path": str(path),
        "method": method,
        "shown": shown,
        "memory_bytes": limits.memory_bytes,
        "cpu_seconds": limits.seconds,
    }
    try:
        found = subprocess.run(
            [sys.executable, "-m", "cohort.service.jobs.row_check_program"],
            input=json.dumps(order),
            capture_output=True,
            text=True,
            timeout=2 * limits.seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise RowsRefusedError(f"{shown}: reading it takes more than {limits.seconds} seconds; split it") from None
    if found.returncode:
        # killed by a limit, or by what the file made a library do
        raise RowsRefusedError(f"{shown}: it cannot be read within the server's limits; split it, or check its content")
    answer = json.loads(found.stdout)
    if problems := answer["problems"]:
        raise RowsRefusedError("\n".join(each["message"] for each in problems))
    return CheckedRows(num_rows=answer["num_rows"], is_chat=answer["is_chat"])
