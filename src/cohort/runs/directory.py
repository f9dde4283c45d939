"""The paths of one run, and the checks before a run is made or opened there."""

from __future__ import annotations

import errno
import os
import tempfile
from difflib import get_close_matches
from pathlib import Path

from cohort.core.durable_files import PARTIAL_SUFFIX, recover_directory, remove_leftovers, storage_full_named
from cohort.core.errors import InputError, Problem, RunStateError
from cohort.core.unusual_path import unusual_path
from cohort.runs.lock import RunLock

__all__ = ["QUEUE_DATABASE", "RunDirectory", "choose_name"]

QUEUE_DATABASE = "queue.db"
"""The directory of a queue holds this file; the run directories of its tasks lie in it."""
_LOCK_NAME = ".lock"
_DATABASE_NAME = "run.db"
_MOST_SHOWN = 5
_MOST_SHOWN_CHARACTERS = 120
_A_RUN = "a directory that `cohort tune TASK.yaml -o RUN_DIR` or cohort.run made"


class RunDirectory:
    """The paths of one run. Make one with :meth:`create` or :meth:`open`; neither takes the lock."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.database = root / _DATABASE_NAME
        # the resolved task, every default written out
        self.task_file = root / "task.yaml"
        self.best = root / "best"
        # manifests, each with a copy of the database as it was then
        self.checkpoints = root / "checkpoints"
        self.trials = root / "trials"
        # rows that were given from Python, a file for each split
        self.rows = root / "rows"
        self.report = root / "report.html"
        self.results_csv = root / "results.csv"
        # the rows that a seed put aside for validation, as their files have them
        self.validation_rows = root / "validation.jsonl"
        # every step and evaluation, one JSON object a line
        self.metrics_jsonl = root / "metrics.jsonl"
        # what people ask of its trials from other processes, and the answers
        self.requests = root / "requests"

    @classmethod
    def find_problem(cls, root: str | Path) -> Problem | None:
        """Return why a new run cannot be made in ``root``, if it cannot; change nothing.

        A directory may be empty, or hold only what a run left that was killed before it began.
        """
        path = Path(root)
        unusual = unusual_path(path)
        if unusual is not None:
            return _unusable(path, found=unusual.found)
        # a run lists, adds and replaces files, which takes all three permissions
        if path.is_dir() and os.access(path, os.R_OK | os.W_OK | os.X_OK):
            return cls(path)._problem_of_content()
        if path.exists():
            return _unusable(path, found="a directory that is not writable" if path.is_dir() else "a file")
        # the directory that mkdir would have to write to
        nearest = next(parent for parent in path.absolute().parents if parent.exists() or parent.is_symlink())
        if nearest.is_dir() and os.access(nearest, os.W_OK):
            return _problem_of_making(path, nearest)
        what = "not writable" if nearest.is_dir() else "a file" if nearest.exists() else "a link to nothing"
        return _unusable(path, found=f"a path below {nearest}, which is {what}")

    @classmethod
    def create(cls, root: str | Path) -> RunDirectory:
        """Make the directory for a new run where :meth:`find_problem` finds nothing against it.

        Raises:
            InputError: ``root`` is a file, holds another run, or holds files that are not ours.
            StorageFullError: the disk is full.
        """
        path = Path(root)
        if (problem := cls.find_problem(path)) is not None:
            raise InputError(problem)
        with storage_full_named(path):
            try:
                path.mkdir(parents=True, exist_ok=True)
            except (PermissionError, NotADirectoryError, FileExistsError, FileNotFoundError) as error:
                # some file systems refuse only when asked, and the path may have changed since it was checked
                raise InputError(_unusable(path, found=f"a path that cannot be created ({error.strerror})")) from error
        return cls(path)

    @classmethod
    def open(cls, root: str | Path) -> RunDirectory:
        """Return the directory of a run that was started.

        Raises:
            InputError: there is no run in ``root``.
        """
        directory = cls(Path(root))
        if (unusual := unusual_path(directory.root)) is not None:
            raise InputError(
                Problem(where=_shown(directory.root), found=unusual.found, allowed=_A_RUN, hint=unusual.hint)
            )
        if not directory.holds_run():
            if (directory.root / QUEUE_DATABASE).is_file():
                raise InputError(directory._problem_of_queue())
            found = "nothing" if not directory.root.exists() else f"no {_DATABASE_NAME} in it"
            if directory.root.is_file():
                found = "a file"
            parent = directory.root.absolute().parent
            in_queue = (parent / QUEUE_DATABASE).is_file()
            or_status = f", or see `cohort status {parent}`, the queue it belongs to" if in_queue else ""
            near = _runs_near(Path(root))
            # a task that has not begun is no run, and is called like its neighbours
            or_task = f" If it is a task of a queue, see `cohort status {parent}`." if in_queue else ""
            raise InputError(
                Problem(
                    where=str(root),
                    found=found,
                    allowed=_A_RUN,
                    hint=f"Did you mean {' or '.join(near)}?{or_task}"
                    if near
                    else f"Check the path, or start the run with `cohort tune`{or_status}.",
                )
            )
        return directory

    def holds_run(self) -> bool:
        """Return whether a run was started here."""
        # the task is written first: a task and a lock file are a run that was killed before its first step, while a
        # task alone may be a file that the user put there
        return self.database.is_file() or (self.task_file.is_file() and (self.root / _LOCK_NAME).exists())

    def lock(self) -> RunLock:
        """Return the lock that every writer holds; not yet taken."""
        return RunLock(self.root / _LOCK_NAME)

    def clean_up(self) -> None:
        """Finish or undo what a killed process left half done; call it with the lock held, before anything else.

        Raises:
            RunStateError: a trial's directory cannot be read.
        """
        try:
            remove_leftovers(self.root)
            # where two directories cannot be exchanged in one step, a kill may have left best/ under its other name
            recover_directory(self.best)
            for folder in (self.checkpoints, self.rows):
                if folder.is_dir():
                    remove_leftovers(folder)
            if self.trials.is_dir():
                remove_leftovers(self.trials)
                for folder in self.trials.iterdir():
                    if folder.is_dir() and not folder.name.startswith("."):
                        remove_leftovers(folder)
                for folder in self.trials.glob(".*.replaced"):
                    recover_directory(self.trials / folder.name.removeprefix(".").removesuffix(".replaced"))
        except PermissionError as error:
            raise RunStateError(f"{error.filename} cannot be read or changed; fix its permissions") from error

    def trial(self, trial_id: int) -> Path:
        """Return the directory of one trial (``trials/0007``)."""
        # padded, so that names sort as numbers do
        return self.trials / f"{trial_id:04d}"

    def _problem_of_queue(self) -> Problem:
        """Return the problem of a user who names the directory of a queue where a run is expected."""
        runs = sorted(str(entry) for entry in self.root.iterdir() if entry.is_dir() and RunDirectory(entry).holds_run())
        return Problem(
            where=str(self.root),
            found="a queue of tasks, not a run",
            allowed=f"the run of one of its tasks: {_some_of(runs)}"
            if runs
            else "the run of a task, but none has begun",
            hint=f"Name one task's run, such as {runs[0]}." if runs else f"See `cohort status {self.root}`.",
        )

    def _problem_of_content(self) -> Problem | None:
        # a killed process leaves its lock file and half-written files behind: they are no reason to refuse; the
        # lock file tells its rows from a user's
        is_ours = (self.root / _LOCK_NAME).exists()
        names = sorted(
            entry.name
            for entry in self.root.iterdir()
            if entry.name != _LOCK_NAME
            and not (entry.name.startswith(".") and PARTIAL_SUFFIX in entry.name)
            and not (is_ours and entry == self.rows)
        )
        if not names:
            return None
        if self.holds_run() and (holder := self.lock().holder()) is not None:
            return Problem(
                where=f"-o {self.root}",
                found=f"a directory that already holds another run, which {holder} works on",
                allowed="a directory that is new or empty",
                hint=f"Watch that run with `cohort status {self.root} --watch`, or choose another directory.",
            )
        if self.holds_run():
            return Problem(
                where=f"-o {self.root}",
                found="a directory that already holds another run",
                allowed="a directory that is new or empty",
                hint=f"Continue with `cohort resume {self.root}` or, with the same task, --on-existing resume; choose "
                "another directory; or train again from the start with --on-existing overwrite.",
            )
        return Problem(
            where=f"-o {self.root}",
            found=f"a directory with files that are not a run's: {_some_of(names)}",
            allowed="a directory that is new or empty",
            hint="Choose another directory, or move these files away.",
        )


def _runs_near(root: Path) -> list[str]:
    """Return the runs that a wrong path probably means: one above it, some in it, or one of a name like it."""
    above = next((parent for parent in root.parents if RunDirectory(parent).holds_run()), None)
    if above is not None:
        return [str(above)]
    folder = root if root.is_dir() else root.parent
    try:
        runs = sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and RunDirectory(entry).holds_run())
    except OSError:
        # no such folder, or not ours to read
        return []
    names = runs if folder == root else get_close_matches(root.name, runs, n=1)
    return [str(folder / name) for name in names[:_MOST_SHOWN]]


def _some_of(names: list[str]) -> str:
    more = len(names) - _MOST_SHOWN
    return ", ".join(names[:_MOST_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _shown(path: Path) -> str:
    text = str(path)
    return text if len(text) <= _MOST_SHOWN_CHARACTERS else f"{text[:_MOST_SHOWN_CHARACTERS]}..."


def _problem_of_making(path: Path, nearest: Path) -> Problem | None:
    """Return why no directory can be made in ``nearest``, by making one there, which is removed again."""
    # permissions do not tell: file systems such as /proc and /sys refuse only when asked
    try:
        os.rmdir(tempfile.mkdtemp(prefix=".cohort-", dir=nearest))
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            # said where it stops the run, with what is free
            return None
        return _unusable(path, found=f"a path below {nearest}, where no directory can be made ({error.strerror})")
    return None


def _unusable(path: Path, *, found: str) -> Problem:
    return Problem(
        where=f"-o {_shown(path)}",
        found=found,
        allowed="a directory that is new or empty, and that you may write to",
        hint="Choose another directory.",
    )


def choose_name(path: Path, *, taken: set[str]) -> str | None:
    """Return the file's stem, or with its folder's name where tasks of several folders have one name."""
    # task files of several folders are often all called task.yaml
    for name in (path.stem, f"{path.parent.name}-{path.stem}"):
        if name not in taken:
            return name
    return None
