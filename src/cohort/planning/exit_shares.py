"""How early trials end in a simulation, as shares of their planned steps: stated, recorded by a run, or replayed."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cohort.core.errors import InputError, Problem
from cohort.planning.planning import NamedTask
from cohort.runs.directory import RunDirectory
from cohort.runs.reader import RunReader
from cohort.tasks.task_file import TaskFile
from cohort.tuning.candidate import Candidate
from cohort.tuning.early_exit.settings import EarlyExitSettings
from cohort.tuning.replay import RecordedCurve, replay_curves
from cohort.tuning.samplers import count_configurations

__all__ = ["exit_shares_of", "read_exit_shares", "selection_shares"]

ALLOWED = "a share above 0 and at most 1, a finished run's directory, or a file of recorded loss curves"


def exit_shares_of(tasks: Sequence[NamedTask], text: str | None, *, where: str) -> dict[str, tuple[float, ...]]:
    """Return, by task, the shares of planned steps that a simulation draws for its trials, under its own exit rule.

    Args:
        text: As :func:`read_exit_shares` takes it; None: the shares of the selection alone.

    Raises:
        InputError: the text is no share, run or file of curves.
    """
    # each task under its own early exit; once a file, since --repeat plans one file many times
    by_path = {
        path: selection_shares(file)
        if text is None
        else read_exit_shares(text, where=where, settings=file.early_exit_settings())
        for path, file in {task.path: task.file for task in tasks}.items()
    }
    return {task.name: by_path[task.path] for task in tasks}


def selection_shares(task: TaskFile) -> tuple[float, ...]:
    """Return the shares of a task's trials if only the selection after the warm-up ends some."""
    settings, search = task.early_exit_settings(), task.search
    num_trials = count_configurations(task.search_space(), sampler=search.sampler, trials=search.trials)
    share = settings.kept_share(num_trials)
    if share == 1:
        return (1.0,)
    # a hundred draws to sample from, so that the share is kept to a per cent
    kept = round(100 * share)
    return (1.0,) * kept + (settings.warmup_fraction,) * (100 - kept)


def read_exit_shares(text: str, *, where: str, settings: EarlyExitSettings | None = None) -> tuple[float, ...]:
    """Return shares of the planned steps, one a trial, to draw from.

    Args:
        text: A share, the directory of a finished run, or a file of curves (``benchmarks/sweeps/curves``).
        settings: Early exit that recorded curves are replayed with.

    Raises:
        InputError: it is none of them.
    """
    try:
        share = float(text)
    except ValueError:
        path = Path(text)
        if path.is_dir():
            return _of_run(path, where=where)
        if path.is_file():
            return _of_curves(path, where=where, settings=settings or EarlyExitSettings())
        raise InputError(
            Problem(
                where=where, found=f"{text!r}, which is not a file", allowed=ALLOWED, hint="Write a share such as 0.3."
            )
        ) from None
    if not 0 < share <= 1:
        raise InputError(Problem(where=where, found=text, allowed=ALLOWED, hint="Write a share such as 0.3."))
    return (share,)


def _of_run(path: Path, *, where: str) -> tuple[float, ...]:
    directory = RunDirectory.open(path)
    with RunReader.open(directory.database) as reader:
        # a trial without a step gives no share: a simulated trial takes some time
        trials = [trial for trial in reader.trials() if trial.status.is_final and trial.steps_done > 0]
    if not trials:
        hint = "Name a run whose trials have ended."
        raise InputError(Problem(where=where, found=f"{path}: no trial has ended", allowed=ALLOWED, hint=hint))
    return tuple(min(1.0, trial.steps_done / trial.planned_steps) for trial in trials)


def _of_curves(path: Path, *, where: str, settings: EarlyExitSettings) -> tuple[float, ...]:
    try:
        content = path.read_bytes()
        plain = gzip.decompress(content) if path.suffix == ".gz" else content
        trials: Sequence[dict[str, Any]] = json.loads(plain)["trials"]
        curves = [_curve(trial) for trial in trials]
        report = replay_curves(curves, settings)
    # the file is the user's: whatever is wrong with it is one problem to show and no traceback
    except (OSError, ValueError, KeyError, TypeError, EOFError) as error:
        raise InputError(
            Problem(
                where=where,
                found=f"{path}: {error or type(error).__name__}",
                allowed=ALLOWED,
                hint="Name a file as benchmarks/sweeps/record_curves.py writes it.",
            )
        ) from None
    planned = {curve.candidate.trial_id: curve.candidate.planned_steps for curve in curves}
    # a share is above 0 even where a rule stops a trial before its first step
    return tuple(max(steps, 1) / planned[trial_id] for trial_id, steps in report.steps.items())


def _curve(trial: dict[str, Any]) -> RecordedCurve:
    points = [(int(step), _number(ema), _number(validation)) for step, ema, validation in trial["points"]]
    candidate = Candidate(
        trial_id=int(trial["trial_id"]),
        planned_steps=int(trial["planned_steps"]),
        warmup_steps=int(trial["warmup_steps"]),
        evaluation_steps=tuple(step for step, _, _ in points),
    )
    return RecordedCurve.from_points(candidate, points, batch_size=int(trial["batch_size"]))


def _number(value: float | str | None) -> float:
    return float("nan") if value is None else float(value)
