"""Exit codes, and the words with them; no traceback without --debug.

0 done, 2 wrong input, a run in use or a full disk, 3 done with a best adapter that is worse than the base model, 1
anything else. 128 + N: stopped by signal N (130 Ctrl-C, 143 SIGTERM, 129 SIGHUP). A reader of the output that goes away
(``| head``) changes no code.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import typer

from cohort.cli.work_ahead import end_work_ahead
from cohort.core.durable_files import finished_path
from cohort.core.errors import CohortError, InputError, InUseError, StorageFullError
from cohort.core.process.interrupts import Interrupted, ending_at_once, exit_code_of, interruption_behind, name_of

__all__ = [
    "EXIT_FAILED",
    "EXIT_INPUT",
    "EXIT_WORSE",
    "end_as_worse",
    "ending_imports",
    "error_json",
    "exits",
    "format_input_error",
    "interruption_words",
    "leave_for_torchrun",
]

EXIT_FAILED = 1
EXIT_INPUT = 2
EXIT_WORSE = 3
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


def error_json(error: BaseException, text: str, *, code: int) -> str:
    """Return what --json prints for an error: its type, words and exit code, and each problem of wrong input."""
    body: dict[str, object] = {"type": type(error).__name__, "message": text, "exit_code": code}
    if isinstance(error, InputError):
        body["message"] = _count(error)
        body["problems"] = [
            {"where": str(p.where), "found": p.found, "allowed": p.allowed, "hint": p.hint} for p in error.problems
        ]
    return json.dumps({"error": body}, indent=2)


def _message(error: BaseException, *, resume: Path | None, is_again: bool) -> tuple[str, int] | None:
    """Return what to print for an error and the exit code; None for one of our own bugs."""
    if isinstance(error, InputError):
        return format_input_error(error), EXIT_INPUT
    if isinstance(error, CohortError):
        # a full disk is no fault of the program: the user can free space, and the run continues from its checkpoint
        # a run that another process works on is none either: `cohort tune` calls it wrong input, too
        return f"error: {error}", EXIT_INPUT if isinstance(error, StorageFullError | InUseError) else EXIT_FAILED
    if isinstance(error, KeyboardInterrupt):
        return interruption_words(error, resume=resume, is_again=is_again), exit_code_of(error)
    if not isinstance(error, OSError):
        return None
    # output outlives its reader: it is another process of the command that ended
    if isinstance(error, BrokenPipeError):
        go_on = "" if resume is None else "; continue with `cohort resume`"
        return f"error: a process that this one was writing to has ended ({error.strerror}){go_on}", EXIT_FAILED
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


def interruption_words(error: KeyboardInterrupt, *, resume: Path | None = None, is_again: bool = False) -> str:
    """Return what was stopped by what, what is saved, and how to go on; the arguments are those of :func:`exits`."""
    by = name_of(error)
    if resume is None:
        return f"interrupted by {by}"
    go_on = f"To continue:\n\n    cohort resume {resume}\n"
    # a queue that is there already would not hold what was being added
    has_begun = not is_again and any((resume / name).exists() for name in ("run.db", "queue.db"))
    if has_begun and isinstance(error, Interrupted) and error.is_at_once:
        return f"interrupted at once by another {by}; what came after the last checkpoint is done again. {go_on}"
    if has_begun:
        return f"interrupted by {by}; the state is saved. {go_on}"
    # a run whose task is written and that has trained nothing
    if (resume / "task.yaml").exists():
        return f"interrupted by {by} before training; nothing was to be saved. {go_on}"
    return f"interrupted by {by} before anything was begun; nothing was to be saved. Start again with the same command"


def end_as_worse(run_directory: Path, *, as_json: bool) -> NoReturn:
    """Say that a run is done and was of no use, and end so: a script must not take its adapter for an improvement."""
    if not as_json:
        print(
            f"the run is done, but no trial beats the base model: the adapter in {run_directory / 'best'} is worse "
            "than none. Search over lower learning rates, or look at rows and losses in the report",
            file=sys.stderr,
        )
    raise typer.Exit(EXIT_WORSE)


@contextmanager
def exits(
    *, as_json: bool = False, debug: bool = False, resume: Path | None = None, is_again: bool = False
) -> Iterator[None]:
    """Turn what a verb raises into a message and an exit code.

    Args:
        as_json: Print errors as JSON on stdout.
        debug: Show tracebacks.
        resume: The run's or queue's directory, for verbs that can be resumed: an interruption then prints the command.
        is_again: What was asked is not in that directory yet, so an interruption says to give the same command again.
    """
    try:
        yield
    except (Exception, KeyboardInterrupt) as raised:
        # a signal may be named as another error's cause
        error = interruption_behind(raised) or raised
        found = _message(error, resume=resume, is_again=is_again)
        if found is None:
            raise
        text, code = found
        if debug:
            traceback.print_exception(error, file=sys.stderr)
        _print_error(error, text, code=code, as_json=as_json)
        raise typer.Exit(code) from None


@contextmanager
def ending_imports(*, as_json: bool = False, resume: Path | None = None) -> Iterator[None]:
    """Let a signal end the process while modules are imported, with the words that :func:`exits` would have for it."""

    def tell(error: Interrupted) -> None:
        try:
            text = interruption_words(error, resume=resume)
            _print_error(error, text, code=exit_code_of(error), as_json=as_json)
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            end_work_ahead()

    with ending_at_once(tell):
        yield


def _print_error(error: BaseException, text: str, *, code: int, as_json: bool) -> None:
    leave_for_torchrun(text)
    if as_json:
        print(error_json(error, text.removeprefix("error: ").strip(), code=code))
    else:
        print(text, file=sys.stderr)


def leave_for_torchrun(text: str) -> None:
    """Leave the words of the error that ends this process where torchrun reads them; nothing where it started none.

    Otherwise torchrun ends with a traceback of its own and says where to read about tracebacks.
    Source: torch.distributed.elastic.multiprocessing.errors, ``ProcessFailure`` and ``ChildFailedError``.
    """
    file = os.environ.get("TORCHELASTIC_ERROR_FILE")
    # serving processes of a test or a notebook may have inherited the name alone
    if not file or "TORCHELASTIC_RUN_ID" not in os.environ:
        return
    # the first of several errors is reported as the cause
    body = {"message": {"message": text, "extraInfo": {"timestamp": str(int(time.time()))}}}
    with contextlib.suppress(OSError):
        Path(file).write_text(json.dumps(body), encoding="utf-8")
