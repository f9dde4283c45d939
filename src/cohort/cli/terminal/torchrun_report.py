"""What torchrun says last of a process that ended with an error: the error's own words.

torchrun ends with a traceback of its own, exit code 1, and what a failed process has left in a file that it names; from
a process that leaves nothing it says where to read about tracebacks.
Source: torch.distributed.elastic.multiprocessing.errors, ``ProcessFailure`` and ``ChildFailedError``.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path

__all__ = ["leave_for_torchrun"]


def leave_for_torchrun(text: str) -> None:
    """Leave the words of the error that ends this process where torchrun reads them; nothing where it started none."""
    file = os.environ.get("TORCHELASTIC_ERROR_FILE")
    # serving processes of a test or a notebook may have inherited the name alone
    if not file or "TORCHELASTIC_RUN_ID" not in os.environ:
        return
    # the first of several errors is reported as the cause
    body = {"message": {"message": text, "extraInfo": {"timestamp": str(int(time.time()))}}}
    with contextlib.suppress(OSError):
        Path(file).write_text(json.dumps(body), encoding="utf-8")
