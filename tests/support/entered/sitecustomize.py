"""Writes down which functions of the product a process enters; Python imports it where its folder is in PYTHONPATH.

A line for each function in ``$ENTERED_FOLDER/PROCESS``: its file below ``src/`` and its qualified name. What only an
import runs (a module, the body of a class) is no function. Each is written at once, since ranks and workers are killed.
"""

from __future__ import annotations

import inspect
import os
import sys
import threading
from types import CodeType, FrameType
from typing import Any

FOLDER = "ENTERED_FOLDER"
SOURCE = "ENTERED_SOURCE"


def watch(folder: str, source: str) -> None:
    """Write down the functions that this process enters from now on, in every thread that starts."""
    # by id, as the hash of a code object reads all of its code; kept, so that no other has its id
    seen: dict[int, CodeType] = {}
    # a worker that forks goes on in the same file
    file = os.open(os.path.join(folder, str(os.getpid())), os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def enter(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if id(code) in seen:
            return
        seen[id(code)] = code
        if code.co_filename.startswith(source) and code.co_flags & inspect.CO_OPTIMIZED:
            os.write(file, f"{code.co_filename[len(source) :]}::{code.co_qualname}\n".encode())

    threading.settrace(enter)
    sys.settrace(enter)


if FOLDER in os.environ:
    watch(os.environ[FOLDER], os.environ[SOURCE])
