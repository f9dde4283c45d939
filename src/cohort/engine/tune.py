"""The main job: a task in, the best adapter out; and its continuation after any kind of stop.

Both are a session of one task. What a kill leaves in the run directory says where to continue.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from cohort.adapter_files.base_model import find_base, record_base
from cohort.checkpoints.checkpoints import Manifest, latest_good_checkpoint
from cohort.core.clock import Clock, SystemClock
from cohort.core.durable_files import write_text
from cohort.core.errors import RunStateError
from cohort.engine.changed_rows import rewritten_note
from cohort.engine.copied_runs import places_now, settle_copy
from cohort.engine.resume_checks import (
    changed_functions_warning,
    require_same_inputs,
    require_same_task,
    surroundings_warning,
)
from cohort.engine.run_start import begun_run, new_directory, open_state_store, prepare_task
from cohort.engine.train.callbacks import Callbacks
from cohort.engine.train.finish import is_complete
from cohort.engine.train.open_run import OpenRun, RunOptions
from cohort.engine.train.progress import ProgressWatcher, SilentWatcher
from cohort.engine.train.task_session import TaskSession
from cohort.memory.sizes import SizeRequest
from cohort.prepare.preparation import Preparation
from cohort.runs.database_copies import repair_database
from cohort.runs.directory import RunDirectory
from cohort.runs.facts import RunFacts, RunState
from cohort.runs.reader import RunReader
from cohort.runs.records import LoggedDecision, LoggedEvent
from cohort.runs.requests.trial_requests import RequestSpool
from cohort.runs.store import RunStore
from cohort.runs.task_of_run import load_run_task, model_place
from cohort.tasks.added_keys import with_added_keys
from cohort.tasks.task_file import TaskFile
from cohort.tuning.interventions import USER

__all__ = ["RunOptions", "resume", "tune"]


def tune(
    task: TaskFile,
    run_directory: str | Path,
    *,
    watcher: ProgressWatcher | None = None,
    options: RunOptions | None = None,
    clock: Clock | None = None,
    callbacks: Callbacks | None = None,
) -> None:
    """Train all trials of ``task``, stop the weak ones early, and leave the best adapter in ``run_directory/best``.

    Everything about the task is read and checked before the run directory is made. ``callbacks`` are called between two
    steps.

    Raises:
        InputError: the task, its data, its model or the output directory is wrong.
        StorageFullError: the disk is full; :func:`resume` goes on once there is room.
        KeyboardInterrupt: interrupted (Ctrl-C, SIGTERM or SIGHUP) at a step boundary, with everything saved.
    """
    watcher, options, clock = watcher or SilentWatcher(), options or RunOptions(), clock or SystemClock()
    occupied = RunDirectory.find_problem(run_directory)
    task = task.with_rows_in(RunDirectory(Path(run_directory)).rows)
    # before the directory is made: a mistake leaves nothing behind
    preparation = prepare_task(
        task,
        watcher=watcher,
        clock=clock,
        request=SizeRequest(token_budget=options.token_budget, num_ranks=options.num_ranks),
        also=() if occupied is None else (occupied,),
    )
    with new_directory(run_directory, task) as directory:
        _train_new(preparation, directory, watcher=watcher, options=options, clock=clock, callbacks=callbacks)


def resume(
    run_directory: str | Path,
    *,
    watcher: ProgressWatcher | None = None,
    options: RunOptions | None = None,
    clock: Clock | None = None,
    places: Sequence[str] = (),
    callbacks: Callbacks | None = None,
) -> None:
    """Continue a run from its last checkpoint; for a finished one, only write results that are missing.

    Args:
        run_directory: The run's directory, or a copy of it, even one that was made while the run was training.
        watcher: Receives progress.
        options: How the run is carried out.
        clock: Measures the run's time.
        places: Command-line arguments that say where its inputs are now, e.g. ``["--dataset.train", "rows.jsonl"]``;
            without them they are looked for where they were, and at the same place relative to the run directory.
        callbacks: Called between two steps.

    Raises:
        InputError: there is no run, or the data, the model or the task is no longer what the run began with.
        RunStateError: another process holds the run, or no state is left to continue from.
        KeyboardInterrupt: interrupted again, with everything saved.
    """
    watcher, options, clock = watcher or SilentWatcher(), options or RunOptions(), clock or SystemClock()
    directory = RunDirectory.open(run_directory)
    with directory.lock():
        directory.clean_up()
        if (repaired := _repair(directory)) is not None:
            watcher.note(f"warning: {repaired}")
        facts = RunFacts()
        if directory.database.exists():
            with contextlib.closing(RunStore.resume(directory.database, clock=clock)) as store:
                facts = store.reader.facts()
                # runs of earlier versions have checkpoints but no such fact
                if store.reader.checkpoints() or facts.has_begun is not None:
                    if not is_complete(store, directory=directory):
                        _continue(
                            store,
                            directory,
                            watcher=watcher,
                            options=options,
                            clock=clock,
                            places=places,
                            callbacks=callbacks,
                        )
                    elif places:
                        _record_place(store, directory, facts=facts, places=places)
                    return
            directory.database.unlink()
        # killed before its first checkpoint: nothing was trained, so it begins again
        task = load_run_task(directory, facts=facts, places=places)
        request = SizeRequest(token_budget=options.token_budget, num_ranks=options.num_ranks)
        preparation = prepare_task(task, watcher=watcher, clock=clock, request=request)
        write_text(directory.task_file, task.resolved_yaml())
        _train_new(preparation, directory, watcher=watcher, options=options, clock=clock, callbacks=callbacks)


def _record_place(store: RunStore, directory: RunDirectory, *, facts: RunFacts, places: Sequence[str]) -> None:
    """Record where the base model of a finished run is now; its rows are needed no more.

    Raises:
        InputError: something else is set, or the model there is another one.
    """
    model = model_place(places, directory=directory)
    record_base(directory, store, find_base(directory, facts=facts, model=model))


def _repair(directory: RunDirectory) -> str | None:
    """Replace a database that cannot be used by that of the last whole checkpoint; return what was done."""
    if not (directory.database.exists() or directory.checkpoints.exists()):
        return None
    if (repaired := repair_database(directory)) is not None or not directory.database.exists():
        return repaired
    with RunReader.open(directory.database) as reader:
        facts = reader.facts()
    # a database that was copied while it was written may be torn without showing it
    return settle_copy(directory, facts)


def _train_new(
    preparation: Preparation,
    directory: RunDirectory,
    *,
    watcher: ProgressWatcher,
    options: RunOptions,
    clock: Clock,
    callbacks: Callbacks | None,
) -> None:
    """Carry out a run whose locked directory holds nothing but its task."""
    # before the record: if the bank does not fit, a resume may choose other sizes
    with (
        contextlib.closing(TaskSession(preparation, clock=clock)) as session,
        begun_run(preparation, directory, watcher=watcher, options=options, clock=clock, callbacks=callbacks) as run,
    ):
        session.join(preparation, run)
        session.run()


def _continue(
    store: RunStore,
    directory: RunDirectory,
    *,
    watcher: ProgressWatcher,
    options: RunOptions,
    clock: Clock,
    places: Sequence[str],
    callbacks: Callbacks | None,
) -> None:
    """Check that a run still has what it began with, and train it from its last whole checkpoint."""
    facts = store.reader.facts()
    task = load_run_task(directory, facts=facts, places=places)
    require_same_task(with_added_keys(facts.task.document or {}), task, path=directory.task_file)
    request = SizeRequest.recorded(facts.sizes, num_ranks=options.num_ranks)
    preparation = prepare_task(
        task, watcher=watcher, clock=clock, request=request, threads=facts.machine.threads, recorded=facts.inputs
    )
    require_same_inputs(facts, preparation)
    # nothing is written before all checks: a refused resume leaves the run as it was
    write_text(directory.task_file, task.resolved_yaml())
    store.set_facts(places=places_now(directory, task))
    if (rewritten := rewritten_note(facts.inputs, preparation.facts.inputs)) is not None:
        watcher.note(rewritten)
    if (warning := surroundings_warning(facts.machine, preparation.facts.machine)) is not None:
        watcher.note(f"warning: {warning}")
    if (warning := changed_functions_warning(facts.inputs, preparation.facts.inputs)) is not None:
        watcher.note(f"warning: {warning}")
    run = OpenRun(
        directory=directory,
        store=store,
        state_store=open_state_store(preparation, directory, options=options),
        clock=clock,
        watcher=watcher,
        options=options,
        callbacks=callbacks or Callbacks(),
    )
    checkpoint = _last_checkpoint(run)
    # steps after it are trained again, to the same bits
    dropped = store.truncate_after(checkpoint.position)
    if dropped:
        # it was measured on states that are trained again, and on a GPU to other bits
        store.set_facts(finals=None, test=None)
    for note in _undone(dropped, directory=directory):
        watcher.note(f"warning: {note}")
    store.set_facts(state=RunState.RUNNING)
    with contextlib.closing(TaskSession(preparation, clock=clock)) as session:
        session.join(preparation, run, checkpoint=checkpoint)
        session.run()


def _undone(dropped: Sequence[LoggedEvent | LoggedDecision], *, directory: RunDirectory) -> list[str]:
    """Return what people did to trials that is after the checkpoint, and that nothing repeats.

    A request is answered once it is in a checkpoint, so this is only after damage, or what a callback had asked.
    """
    spool = RequestSpool(directory.requests)
    waiting = {request.signature for name in spool.waiting() if (request := spool.read(name)) is not None}
    return [
        f"trial {entry.decision.trial_id}: {entry.decision.reason} ({entry.decision.message}) came after the "
        "checkpoint that this run continues from; a callback asks again by itself, a person has to"
        for entry in dropped
        if isinstance(entry, LoggedDecision) and entry.decision.rule == USER and entry.decision.message not in waiting
    ]


def _last_checkpoint(run: OpenRun) -> Manifest:
    """Put the last whole checkpoint on the state store and return it.

    Raises:
        RunStateError: none is left.
    """
    manifest, problems = latest_good_checkpoint(run.store, run.state_store, directory=run.directory)
    for problem in problems:
        run.watcher.note(f"warning: {problem}; continuing from an earlier checkpoint")
    if manifest is None:
        raise RunStateError(
            f"no complete checkpoint is left in {run.directory.root}: {'; '.join(problems)}; if this is a copy of a "
            "run that was training, copy it again; otherwise start again with "
            f"`cohort tune {run.directory.task_file} -o NEW_DIR`"
        )
    return manifest
