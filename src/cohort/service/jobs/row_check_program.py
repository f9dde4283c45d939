"""The program that reads a client's rows: ``python -m cohort.service.jobs.row_check_program``.

Reads its order as JSON from standard input and prints what it found as JSON. It has a process of its own, with limits
on memory and time, because it is not known what a file holds before it is read.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from pathlib import Path
from typing import Any

from cohort.core.errors import CohortError, Problem
from cohort.core.process.parent_death import die_with_parent
from cohort.data.files.formats import DataFormat
from cohort.data.files.reading import find_sources, read_examples
from cohort.data.problems import LISTED_PROBLEMS, ProblemLog
from cohort.data.settings import DatasetSettings, RowReading

__all__ = ["main", "read_rows"]

# of other ways to read rows every format is welcome
_FORMATS = {
    "supervised": (DataFormat.MESSAGES, DataFormat.PROMPT_COMPLETION),
    "dpo": (DataFormat.PREFERENCE,),
}
_READS = {"supervised": RowReading.ANSWERS, "dpo": RowReading.PAIRS}
_WANTED = {
    "supervised": '{"messages": [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}]}',
    "dpo": '{"input": {"messages": [...]}, "preferred_output": [...], "non_preferred_output": [...]}',
}


def read_rows(path: Path, *, method: str, shown: str) -> dict[str, Any]:
    """Return the number of rows of a file and whether they are chats, or what is wrong with them and in which line.

    Args:
        method: ``supervised`` or ``dpo``, for rows as OpenAI has them; or what a task's objective reads of a row.
        shown: What messages call the file.
    """
    settings = DatasetSettings(train=str(path), reads=_READS.get(method) or RowReading(method))
    log = ProblemLog()
    parsed = read_examples(find_sources(settings, log=log), settings=settings, log=log)
    problems = log.stopping(bad_rows_stop=True, long_rows_stop=False, can_skip=False)
    if not problems and method in _FORMATS and parsed.format not in _FORMATS[method]:
        found = "no rows" if parsed.format is None else f"rows in the {parsed.format.value} format"
        hint = f"Write a row in each line, such as {_WANTED[method]}."
        problems = [Problem(where=shown, found=found, allowed=f"rows of method {method}", hint=hint)]
    told = [_told(each, shown) for each in problems[:LISTED_PROBLEMS]]
    return {"num_rows": len(parsed.train), "is_chat": parsed.is_chat, "problems": told}


def _told(problem: Problem, shown: str) -> dict[str, Any]:
    line = problem.where.line
    # the path is the server's; the client knows the id alone
    place = shown if line is None else f"{shown}, line {line}"
    text = problem.where.text.replace(problem.where.file, shown) if problem.where.file else problem.where.text
    if line is None and ":" in text:
        place = f"{shown}, line {text.rpartition(':')[2]}" if text.rpartition(":")[2][:1].isdigit() else shown
    return {"line": line, "message": f"{place}: found {problem.found}; allowed: {problem.allowed}. {problem.hint}"}


def main() -> None:
    """Read the order, obey it within its limits, print the answer."""
    die_with_parent(os.getppid())
    order = json.load(sys.stdin)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (order["memory_bytes"],) * 2)
    resource.setrlimit(resource.RLIMIT_CPU, (order["cpu_seconds"],) * 2)
    try:
        answer = read_rows(Path(order["path"]), method=order["method"], shown=order["shown"])
    except MemoryError:
        answer = {"num_rows": 0, "problems": [{"line": None, "message": f"{order['shown']}: too large to be read"}]}
    except (RecursionError, CohortError, ValueError, UnicodeError) as error:
        text = f"{order['shown']}: cannot be read ({type(error).__name__})"
        answer = {"num_rows": 0, "problems": [{"line": None, "message": text}]}
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
