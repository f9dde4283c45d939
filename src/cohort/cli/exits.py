"""Exit codes: 0 done, 2 wrong input or a full disk, 130 interrupted, 1 anything else; no traceback without --debug."""

from __future__ import annotations

import errno
import json
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

from cohort.cli.terminal.lost_terminal import unless_terminal_is_gone
from cohort.cli.terminal.torchrun_report import leave_for_torchrun
from cohort.core.durable_files import finished_path
from cohort.core.errors import CohortError, InputError, StorageFullError

__all__ = ["EXIT_FAILED", "EXIT_INPUT", "EXIT_INTERRUPTED", "exits", "format_input_error"]

EXIT_FAILED = 1
EXIT_INPUT = 2
EXIT_INTERRUPTED = 130
# weights that do not match their configuration give a problem for each tensor: thousands
_MOST_SHOWN = 50
# an ``allowed`` above this many characters is printed once
_LONG = 120


def _count(error: InputError) -> str:
    count = len(error.problems)
    return f"{count} problem{'s' if count != 1 else ''} in the input"


def format_input_error(error: InputError) -> str:
    """Return every problem as a block: where, what was found, what is allowed, what to do."""
    lines = [f"error: {_count(error)}"]
    # a file of another tool has dozens of unknown keys: the known ones are listed once
    listed: dict[str, str] = {}
    for problem in error.problems[:_MOST_SHOWN]:
        first = listed.setdefault(problem.allowed, str(problem.where))
        is_repeated = len(problem.allowed) > _LONG and first != str(problem.where)
        lines += [
            "",
            f"  {problem.where}",
            f"    found    {problem.found}",
            f"    allowed  {f'as for {first}' if is_repeated else problem.allowed}",
            f"    hint     {problem.hint}",
        ]
    if len(error.problems) > _MOST_SHOWN:
        lines += ["", f"  and {len(error.problems) - _MOST_SHOWN} more; --json lists all"]
    return "\n".join(lines)


def _error_json(error: BaseException, text: str, *, code: int) -> str:
    body: dict[str, object] = {"type": type(error).__name__, "message": text, "exit_code": code}
    if isinstance(error, InputError):
        body["message"] = _count(error)
        body["problems"] = [
            {"where": str(p.where), "found": p.found, "allowed": p.allowed, "hint": p.hint} for p in error.problems
        ]
    return json.dumps({"error": body}, indent=2)


def _message(error: BaseException, *, resume: Path | None) -> tuple[str, int] | None:
    """Return what to print for an error and the exit code; None for one of our own bugs."""
    if isinstance(error, InputError):
        return format_input_error(error), EXIT_INPUT
    if isinstance(error, CohortError):
        # a full disk is no fault of the program: the user can free space, and the run continues from its checkpoint
        return f"error: {error}", EXIT_INPUT if isinstance(error, StorageFullError) else EXIT_FAILED
    if isinstance(error, KeyboardInterrupt):
        saved = resume is not None and any((resume / name).exists() for name in ("run.db", "queue.db"))
        how = f"; the state is saved. To continue:\n\n    cohort resume {resume}\n" if saved else ""
        return f"interrupted{how}", EXIT_INTERRUPTED
    if not isinstance(error, OSError):
        return None
    place = f" at {finished_path(str(error.filename))}" if error.filename else ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"error: no space is left{place}; free some, then continue with `cohort resume`", EXIT_INPUT
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        fix = "fix the permissions, or choose another directory"
        return f"error: not allowed{place} ({error.strerror}); {fix}", EXIT_FAILED
    # no file can have such a path; one that was checked would be one of our own bugs, which --debug shows as well
    if error.errno in (errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.ELOOP):
        shown = str(finished_path(str(error.filename)) if error.filename else "a path")
        shown = shown if len(shown) <= _LONG else f"{shown[:_LONG]}..."
        return f"error: {shown} is no path that can be used ({error.strerror}); choose another", EXIT_INPUT
    return None


@contextmanager
def exits(*, as_json: bool = False, debug: bool = False, resume: Path | None = None) -> Iterator[None]:
    """Turn what a verb raises into a message and an exit code.

    Args:
        as_json: Print errors as JSON on stdout.
        debug: Show tracebacks.
        resume: The run's or queue's directory, for verbs that can be resumed: an interruption then prints the command.
    """
    try:
        yield
    except BrokenPipeError:
        # The reader of our output has closed it (`| head`). Python would flush stdout once more at exit and print a
        # traceback; writing to nowhere prevents that.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(EXIT_FAILED) from None
    except (CohortError, OSError, KeyboardInterrupt) as error:
        found = _message(error, resume=resume)
        if found is None:
            raise
        text, code = found
        leave_for_torchrun(text)
        if debug:
            traceback.print_exception(error, file=sys.stderr)
        if as_json:
            print(_error_json(error, text.removeprefix("error: ").strip(), code=code))
        else:
            with unless_terminal_is_gone():
                print(text, file=sys.stderr)
        raise typer.Exit(code) from None
