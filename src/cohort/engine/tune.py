"""The main job: a task in, the best adapter out; and its continuation after any kind of stop."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from pathlib import Path

import torch

from cohort.core.clock import Clock, SystemClock
from cohort.core.durable_files import write_text
from cohort.core.errors import Problem, RunStateError
from cohort.core.interrupts import stopping_gently
from cohort.engine.changed_rows import rewritten_note
from cohort.engine.copied_runs import places_now, settle_copy
from cohort.engine.first_record import begin_record, open_state_store
from cohort.engine.machine.thread_count import settle_thread_count
from cohort.engine.memory.sizes import SizeRequest
from cohort.engine.memory.watch import MemoryWatch
from cohort.engine.prepare.preparation import Preparation, prepare
from cohort.engine.prepare.trials import objective_metric
from cohort.engine.resume_checks import require_same_inputs, require_same_task, surroundings_warning
from cohort.engine.state.checkpoints import Manifest, latest_good_checkpoint
from cohort.engine.state.trial_states import TrialStateStore
from cohort.engine.train.executor_share import ExecutorShare
from cohort.engine.train.finish import is_complete
from cohort.engine.train.open_run import OpenRun, RunOptions
from cohort.engine.train.progress import ProgressWatcher, RunProgress, SilentWatcher
from cohort.engine.train.session import Session, StopRequestedError
from cohort.engine.train.task_run import TaskRun
from cohort.runs.database_copies import repair_database
from cohort.runs.directory import RunDirectory
from cohort.runs.facts import RunFacts, RunState
from cohort.runs.reader import RunReader
from cohort.runs.store import RunStore
from cohort.runs.task_of_run import load_run_task
from cohort.tasks.task_file import TaskFile
from cohort.training.executor import Executor

__all__ = ["RunOptions", "resume", "tune"]


def tune(
    task: TaskFile,
    run_directory: str | Path,
    *,
    watcher: ProgressWatcher | None = None,
    options: RunOptions | None = None,
    clock: Clock | None = None,
) -> None:
    """Train all trials of ``task``, stop the weak ones early, and leave the best adapter in ``run_directory/best``.

    Everything about the task is read and checked before the run directory is made.

    Raises:
        InputError: the task, its data, its model or the output directory is wrong.
        StorageFullError: the disk is full; :func:`resume` goes on once there is room.
        KeyboardInterrupt: interrupted (Ctrl-C or SIGTERM) at a step boundary, with everything saved.
    """
    watcher, options, clock = watcher or SilentWatcher(), options or RunOptions(), clock or SystemClock()
    occupied = RunDirectory.find_problem(run_directory)
    on_cpu = task.num_gpus == 0 or not torch.cuda.is_available()
    settle_thread_count(task.model_name_or_path, on_cpu=on_cpu)
    preparation = _prepare(
        task,
        watcher=watcher,
        clock=clock,
        request=SizeRequest(token_budget=options.token_budget),
        also=() if occupied is None else (occupied,),
    )
    directory = RunDirectory.create(run_directory)
    with directory.lock():
        directory.clean_up()
        write_text(directory.task_file, task.resolved_yaml())
        _begin(preparation, directory, watcher=watcher, options=options, clock=clock)


def resume(
    run_directory: str | Path,
    *,
    watcher: ProgressWatcher | None = None,
    options: RunOptions | None = None,
    clock: Clock | None = None,
    places: Sequence[str] = (),
) -> None:
    """Go on with a run from its last checkpoint; a finished one only gets what is missing of its results.

    Args:
        run_directory: Of the run, or a copy of it, also one that was taken while the run was going on.
        watcher: Told of progress.
        options: How the run is carried out.
        clock: Of the run.
        places: Command-line arguments that say where its inputs are now, e.g. ``["--dataset.train", "rows.jsonl"]``;
            without them they are looked for where they were, and at the same place relative to the run directory.

    Raises:
        InputError: there is no run, or the data, the model or the task is no longer what the run began with.
        RunStateError: another process is at it, or no state is left to go on from.
        KeyboardInterrupt: interrupted again, with everything saved.
    """
    watcher, options, clock = watcher or SilentWatcher(), options or RunOptions(), clock or SystemClock()
    directory = RunDirectory.open(run_directory)
    with directory.lock():
        directory.clean_up()
        repaired = repair_database(directory) if directory.database.exists() or directory.checkpoints.exists() else None
        if repaired is not None:
            watcher.note(f"warning: {repaired}")
        if not directory.database.exists():
            _begin_again(directory, RunFacts(), watcher=watcher, options=options, clock=clock, places=places)
            return
        with RunReader.open(directory.database) as reader:
            facts = reader.facts()
        if repaired is None and (settled := settle_copy(directory, facts)) is not None:
            watcher.note(f"warning: {settled}")
        with contextlib.closing(RunStore.resume(directory.database, clock=clock)) as store:
            facts = store.reader.facts()
            if not store.reader.checkpoints() and facts.has_begun is None:
                store.close()
                directory.database.unlink()
                _begin_again(directory, facts, watcher=watcher, options=options, clock=clock, places=places)
                return
            if is_complete(store, directory=directory):
                return
            _continue(store, directory, watcher=watcher, options=options, clock=clock, places=places)


def _begin(
    preparation: Preparation, directory: RunDirectory, *, watcher: ProgressWatcher, options: RunOptions, clock: Clock
) -> None:
    """Carry out a run whose directory holds nothing but its task; call it with the lock held."""
    task = preparation.task
    with contextlib.closing(RunStore.create(directory.database, metric=objective_metric(task), clock=clock)) as store:
        state_store = open_state_store(preparation, directory, options=options)
        executor = preparation.build_executor()
        begin_record(preparation, store, state_store, directory=directory)
        _go(preparation, executor, store, state_store, directory, watcher=watcher, options=options, clock=clock)


def _begin_again(
    directory: RunDirectory,
    facts: RunFacts,
    *,
    watcher: ProgressWatcher,
    options: RunOptions,
    clock: Clock,
    places: Sequence[str],
) -> None:
    """Begin a run that was killed before its first checkpoint."""
    task = load_run_task(directory, facts=facts, places=places)
    preparation = _prepare(task, watcher=watcher, clock=clock, request=SizeRequest(token_budget=options.token_budget))
    write_text(directory.task_file, task.resolved_yaml())
    _begin(preparation, directory, watcher=watcher, options=options, clock=clock)


def _continue(
    store: RunStore,
    directory: RunDirectory,
    *,
    watcher: ProgressWatcher,
    options: RunOptions,
    clock: Clock,
    places: Sequence[str],
) -> None:
    facts = store.reader.facts()
    _keep_thread_count(facts)
    task = load_run_task(directory, facts=facts, places=places)
    require_same_task(facts.task.document or {}, task, path=directory.task_file)
    preparation = _prepare(task, watcher=watcher, clock=clock, request=SizeRequest.recorded(facts.sizes))
    require_same_inputs(facts, preparation)
    write_text(directory.task_file, task.resolved_yaml())
    store.set_facts(places=places_now(directory, task))
    if (rewritten := rewritten_note(facts.inputs, preparation.facts.inputs)) is not None:
        watcher.note(rewritten)
    if (warning := surroundings_warning(facts.machine, preparation.facts.machine)) is not None:
        watcher.note(f"warning: {warning}")
    state_store = open_state_store(preparation, directory, options=options)
    manifest, problems = latest_good_checkpoint(store, state_store, directory=directory)
    for problem in problems:
        watcher.note(f"warning: {problem}; going on from an earlier checkpoint")
    if manifest is None:
        raise RunStateError(
            f"no whole checkpoint is left in {directory.root}: {'; '.join(problems)}; if this is a copy of a run that "
            f"was going on, copy it again; else start again with `cohort tune {directory.task_file} -o NEW_DIR`"
        )
    store.truncate_after(manifest.position)
    store.set_facts(state=RunState.RUNNING)
    executor = preparation.build_executor()
    _go(
        preparation,
        executor,
        store,
        state_store,
        directory,
        watcher=watcher,
        options=options,
        clock=clock,
        checkpoint=manifest,
    )


def _go(
    preparation: Preparation,
    executor: Executor,
    store: RunStore,
    state_store: TrialStateStore,
    directory: RunDirectory,
    *,
    watcher: ProgressWatcher,
    options: RunOptions,
    clock: Clock,
    checkpoint: Manifest | None = None,
) -> None:
    """Train a task that has the executor to itself, from ``checkpoint`` or the start, and write its results.

    Raises:
        KeyboardInterrupt: asked to stop; everything is saved.
    """
    share = ExecutorShare(executor, rows=preparation.data.train)
    parts = OpenRun(
        directory=directory, store=store, state_store=state_store, clock=clock, watcher=watcher, options=options
    )
    run = TaskRun(preparation, share, parts)
    if checkpoint is not None:
        run.replay()
        run.supervisor.restore(checkpoint)
    executor.reliefs.append(state_store.leave_device)
    memory = MemoryWatch(
        executor,
        preparation.memory,
        before=store.reader.facts().passes,
        record=lambda passes: store.set_facts(passes=passes),
        note=watcher.note,
        clock=clock,
    )
    stop = threading.Event()
    session = Session(
        executor,
        capacity=preparation.sizes.capacity,
        clock=clock,
        stop_requested=stop.is_set,
        at_boundary=memory.took,
    )
    session.join(run.supervisor)
    try:
        run.measure_base()
        with stopping_gently(stop):
            session.run()
    except StopRequestedError:
        memory.record()
        run.was_interrupted()
        raise KeyboardInterrupt from None
    finally:
        run.close_trackers()
    memory.record()
    run.finish(was_alone=True)


def _prepare(
    task: TaskFile, *, watcher: ProgressWatcher, clock: Clock, request: SizeRequest, also: Sequence[Problem] = ()
) -> Preparation:
    preparation = prepare(
        task, clock=clock, say=lambda phase: watcher.update(RunProgress(phase=phase)), request=request, also=also
    )
    machine = preparation.facts.machine
    trials = f"{len(preparation.proposals.first)} trials{'' if preparation.proposals.is_complete else ' at first'}"
    threads = f"{machine.threads} thread{'' if machine.threads == 1 else 's'}"
    watcher.note(
        f"{trials} on {machine.device}, {machine.precision}, {threads}; products: {machine.backend}; "
        f"attention: {machine.attention}"
    )
    for note in preparation.notes:
        watcher.note(note)
    return preparation


def _keep_thread_count(facts: RunFacts) -> None:
    """Thread count is part of a run's identity: sums over many numbers come out otherwise under another one."""
    recorded = facts.machine.threads
    if recorded is not None and recorded != torch.get_num_threads():
        torch.set_num_threads(recorded)
