"""Exit codes: 0 done, 2 for the user to hint, 130 interrupted, 1 anything else; tracebacks only on ``--debug``."""

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

from cohort.core.errors import CohortError, InputError, StorageFullError

__all__ = ["EXIT_FAILED", "EXIT_INPUT", "EXIT_INTERRUPTED", "exits", "format_input_error"]

EXIT_FAILED = 1
EXIT_INPUT = 2
EXIT_INTERRUPTED = 130
# a model of other weights than its configuration says has a thousand problems
_MOST_SHOWN = 50


def _count(error: InputError) -> str:
    count = len(error.problems)
    return f"{count} problem{'s' if count != 1 else ''} in the input"


def format_input_error(error: InputError) -> str:
    """Return every problem as a block: where, what was found, what is allowed, what to do."""
    lines = [f"error: {_count(error)}"]
    for problem in error.problems[:_MOST_SHOWN]:
        lines += [
            "",
            f"  {problem.where}",
            f"    found    {problem.found}",
            f"    allowed  {problem.allowed}",
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


def _report(error: BaseException, text: str, *, code: int, as_json: bool, debug: bool) -> typer.Exit:
    if debug:
        traceback.print_exception(error, file=sys.stderr)
    if as_json:
        print(_error_json(error, text.removeprefix("error: ").strip(), code=code))
    else:
        print(text, file=sys.stderr)
    return typer.Exit(code)


@contextmanager
def exits(*, as_json: bool = False, debug: bool = False, resume: Path | None = None) -> Iterator[None]:
    """Turn what a verb raises into a message and an exit code.

    Args:
        as_json: Print errors as JSON on stdout.
        debug: Show tracebacks.
        resume: The directory of the run or queue, for verbs that can be resumed: an interruption then names the line to
            type.
    """
    try:
        yield
    except InputError as error:
        raise _report(error, format_input_error(error), code=EXIT_INPUT, as_json=as_json, debug=debug) from None
    except StorageFullError as error:
        # no fault of the program: the user can fix it, and the run goes on after that
        raise _report(error, f"error: {error}", code=EXIT_INPUT, as_json=as_json, debug=debug) from None
    except CohortError as error:
        raise _report(error, f"error: {error}", code=EXIT_FAILED, as_json=as_json, debug=debug) from None
    except KeyboardInterrupt as error:
        text = "interrupted"
        if resume is not None and any((resume / name).exists() for name in ("run.db", "queue.db")):
            text = f"interrupted; the state is saved. To go on:\n\n    cohort resume {resume}\n"
        raise _report(error, text, code=EXIT_INTERRUPTED, as_json=as_json, debug=debug) from None
    except BrokenPipeError:
        # the reader of our output has left (`| head`): nobody is there to be told
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(EXIT_FAILED) from None
    except OSError as error:
        place, code = f" at {error.filename}" if error.filename else "", EXIT_INPUT
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            text = f"error: no space is left{place}; free some, then go on with `cohort resume`"
        elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            text = f"error: not allowed{place} ({error.strerror}); fix the permissions, or choose another directory"
            code = EXIT_FAILED
        else:
            raise
        raise _report(error, text, code=code, as_json=as_json, debug=debug) from None
