"""Trials of a finished run are trained once more, up to a best checkpoint that is not on disk.

A trial that lost has none where the run ended before it was written, or where the task keeps none. Its steps are draws
of its own seed alone, so the same steps give the same adapter.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from cohort.checkpoints.checkpoints import Manifest
from cohort.checkpoints.stored_state import StoredState, StoredStateKind
from cohort.core.clock import Clock, SystemClock
from cohort.core.errors import InputError, Problem
from cohort.engine.run_resume import ReadyRun, ready_to_resume
from cohort.engine.run_start import open_state_store
from cohort.engine.train.joining import join_executor
from cohort.engine.train.open_run import RunConditions, RunOptions
from cohort.engine.train.trained_again import trained_to
from cohort.engine.train.watching.progress import ProgressWatcher, RunProgress, SilentWatcher
from cohort.runs.directory import RunDirectory
from cohort.runs.reader import RunReader
from cohort.runs.store import RunStore
from cohort.training.checkpoint import is_whole_state

__all__ = ["train_again"]


def train_again(
    run_directory: str | Path,
    trial_ids: Sequence[int],
    *,
    watcher: ProgressWatcher | None = None,
    options: RunOptions | None = None,
    clock: Clock | None = None,
    places: Sequence[str] = (),
) -> None:
    """Write the best checkpoints of trials of a finished run that are not on disk; its record stays as it is.

    Args:
        run_directory: The run's directory.
        trial_ids: Trials; those whose checkpoint is there are not trained.
        watcher: Receives progress.
        options: How the trials are trained.
        clock: Measures time.
        places: As for :func:`cohort.engine.tune.resume`.

    Raises:
        InputError: the run has not ended or has no such trial, the trial never had a best checkpoint, or the data, the
            model or the task is no longer what the run began with.
        RunStateError: another process holds the run.
        StorageFullError: the disk is full.
    """
    watcher = watcher or SilentWatcher()
    conditions = RunConditions(watcher=watcher, options=options or RunOptions(), clock=clock or SystemClock())
    directory = RunDirectory.open(run_directory)
    steps = _missing(directory, trial_ids)
    there = [trial_id for trial_id in dict.fromkeys(trial_ids) if trial_id not in steps]
    for trial_id in there:
        watcher.note(
            f"the best checkpoint of trial {trial_id} is there: `cohort export {run_directory} --trial {trial_id}`"
        )
    if not steps:
        return
    ready = ready_to_resume(run_directory, conditions, places=places, is_finished=True)
    assert ready is not None, "a run that trains again is opened however whole it is"
    with ready, contextlib.closing(RunStore.resume(directory.database, clock=conditions.clock)) as store:
        _train(ready, store, steps, conditions)


def _missing(directory: RunDirectory, trial_ids: Sequence[int]) -> dict[int, int]:
    """Return the steps of the best checkpoints that are not on disk, by trial.

    Raises:
        InputError: there are no such trials, or they cannot have a checkpoint.
    """
    with RunReader.open(directory.database) as reader:
        facts, trials = reader.facts(), {trial.trial_id: trial for trial in reader.trials()}
    if not facts.are_results_written:
        raise InputError(
            Problem(
                where="--trial",
                found="a run that has not ended",
                allowed="a run with results",
                hint=f"Continue it with `cohort resume {directory.root}`.",
            )
        )
    problems, steps = [], {}
    for trial_id in trial_ids:
        best = None if trial_id not in trials else trials[trial_id].best_step
        if best is None:
            what = "which is not a trial of this run" if trial_id not in trials else "which never had a finite loss"
            allowed = ", ".join(str(number) for number, trial in sorted(trials.items()) if trial.best_step is not None)
            hint = f"List them with `cohort trials {directory.root}`."
            problems.append(
                Problem(where="--trial", found=f"{trial_id}, {what}", allowed=f"one of {allowed}", hint=hint)
            )
        # a machine that stopped may have torn what nothing waited for
        elif not is_whole_state(directory.root / StoredState(trial_id, StoredStateKind.BEST, best).relative_path):
            steps[trial_id] = best
    if problems:
        raise InputError(problems)
    return steps


def _train(ready: ReadyRun, store: RunStore, steps: Mapping[int, int], conditions: RunConditions) -> None:
    """Train trials to ``steps`` together, as many as there is room for, and write their weights there."""
    # trackers have all there is to know of these trials
    task = ready.preparation.task.model_copy(update={"report_to": ()})
    preparation = replace(ready.preparation, task=task)
    states = open_state_store(preparation, ready.directory, conditions)
    run, watcher = conditions.opened(ready.directory, store=store, state_store=states), conditions.watcher
    # The weights that clones begin with. Not all files of the checkpoint: one that is damaged is no reason to refuse.
    starts = [StoredState(trial.trial_id, StoredStateKind.START, 0).relative_path for trial in store.reader.trials()]
    run.state_store.restore({}, spares=starts)
    checkpoint = Manifest(position=store.position, resident=(), files={})
    with contextlib.closing(run.state_store), contextlib.closing(preparation.build_executor()) as executor:
        executor.reliefs.append(run.state_store.leave_device)
        member = join_executor(executor, preparation, run, checkpoint=checkpoint)
        for trained, (trial_id, weights_rD, largest) in enumerate(trained_to(member, executor, steps), start=1):
            run.state_store.put_best(trial_id, weights_rD, step=steps[trial_id])
            watcher.update(RunProgress(phase=f"trained {trained} of {len(steps)} trials again"))
            like = "the losses on record" if not largest else f"losses within {largest:.1g} of those on record"
            watcher.note(f"trial {trial_id} trained {steps[trial_id]} steps again, with {like}")
        run.state_store.flush(bests_of=steps)
    watcher.note(f"`cohort export {ready.directory.root} --trial N` takes them")
