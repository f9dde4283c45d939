"""From a task to a run that has begun: prepared, with a directory of its own and the first entries of its record."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from cohort.checkpoints.checkpoints import save_checkpoint
from cohort.checkpoints.trial_states import TrialStateStore
from cohort.core.durable_files import write_bytes, write_text
from cohort.core.errors import Problem
from cohort.core.units import counted
from cohort.engine.copied_runs import places_now
from cohort.engine.disk_room import disk_warning
from cohort.engine.train.open_run import OpenRun, RunConditions
from cohort.engine.train.watching.progress import RunProgress
from cohort.machine.machine import free_memory_bytes
from cohort.machine.thread_count import settle_thread_count
from cohort.memory.size_inputs import SizeRequest, task_optimizer
from cohort.prepare.base_model.loaded_backbone import LoadedBackbone
from cohort.prepare.preparation import Preparation, prepare
from cohort.prepare.trials import objective_metric
from cohort.runs.directory import RunDirectory
from cohort.runs.facts import RunFacts, RunState
from cohort.runs.store import RunStore
from cohort.tasks.task_file import TaskFile

__all__ = ["begun_run", "new_directory", "note_disk", "open_state_store", "prepare_task", "write_given_rows"]


def prepare_task(
    task: TaskFile,
    conditions: RunConditions,
    *,
    request: SizeRequest | None = None,
    also: Sequence[Problem] = (),
    backbone: LoadedBackbone | None = None,
    begun: RunFacts | None = None,
) -> Preparation:
    """Prepare a task and note what it will run on.

    Args:
        request: The sizes of a new run; None: as the options say.
        also, backbone, begun: As for :func:`prepare`.

    Raises:
        InputError: anything is wrong with the task; all of it.
    """
    options, watcher = conditions.options, conditions.watcher
    if begun is not None:
        request = SizeRequest.recorded(begun.sizes, num_ranks=options.num_ranks, launched=options.launched)
    elif request is None:
        request = SizeRequest(token_budget=options.token_budget, num_ranks=options.num_ranks, launched=options.launched)
    threads = None if begun is None else begun.machine.threads
    # part of a run's identity: sums over many numbers have other last bits with another number of threads
    # a later task of a session finds the threads that the first one settled
    if threads is not None and backbone is None:
        if threads != torch.get_num_threads():
            torch.set_num_threads(threads)
    elif backbone is None:
        on_cpu = task.num_gpus == 0 or not torch.cuda.is_available()
        settle_thread_count(task.model_name_or_path, on_cpu=on_cpu)
    preparation = prepare(
        task,
        clock=conditions.clock,
        say=lambda phase: watcher.update(RunProgress(phase=phase)),
        request=request,
        also=also,
        backbone=backbone,
        begun=begun,
    )
    machine, proposals = preparation.facts.machine, preparation.proposals
    count = f"{counted(len(proposals.first), 'trial')}{'' if proposals.is_complete else ' at first'}"
    num_ranks = preparation.num_ranks
    times = f"{num_ranks} x " if num_ranks > 1 else ""
    on = f"{times}{machine.device}, {machine.precision}, {counted(machine.threads or 1, 'thread')}"
    # no silent fallback: what was chosen is printed and stored
    watcher.note(f"{count} on {on}; products: {machine.backend}; attention: {machine.attention}")
    for note in preparation.notes:
        watcher.note(note)
    # said when the run began: a resume can change none of what they are about
    for warning in preparation.warnings if threads is None else ():
        watcher.note(f"warning: {warning}")
    return preparation


@contextlib.contextmanager
def new_directory(path: str | Path, task: TaskFile) -> Iterator[RunDirectory]:
    """Make a run directory that holds the task, locked within.

    Raises:
        InputError: the directory holds other files.
    """
    directory = RunDirectory.create(path)
    with directory.lock():
        directory.clean_up()
        # the task before the record, and its rows before it: a directory without a record begins again from them
        write_given_rows(task, directory.rows)
        write_text(directory.task_file, task.resolved_yaml())
        yield directory


def write_given_rows(task: TaskFile, folder: Path) -> None:
    """Write the rows that were given from Python where :meth:`TaskFile.with_rows_in` expects them."""
    if task.given:
        folder.mkdir(parents=True, exist_ok=True)
    for split, rows in task.given.items():
        write_bytes(folder / f"{split}.jsonl", rows.content)


def note_disk(preparation: Preparation, directory: RunDirectory, conditions: RunConditions) -> None:
    """Tell the watcher where the disk may be too small for the run's checkpoints."""
    adapters = [trial.spec.adapter for trial in preparation.proposals.first]
    optimizer, layout = task_optimizer(preparation.task), preparation.inputs.layout
    warning = disk_warning(directory.root, adapters, layout=layout, optimizer=optimizer)
    if warning is not None:
        conditions.watcher.note(f"warning: {warning}")


@contextlib.contextmanager
def begun_run(
    preparation: Preparation,
    directory: RunDirectory,
    conditions: RunConditions,
) -> Iterator[OpenRun]:
    """Open a new run within: record its trials and inputs, and a checkpoint to go back to.

    The directory is locked and holds nothing but the task.
    """
    metric = objective_metric(preparation.task)
    note_disk(preparation, directory, conditions)
    states = open_state_store(preparation, directory, conditions)
    with (
        contextlib.closing(RunStore.create(directory.database, metric=metric, clock=conditions.clock)) as store,
        contextlib.closing(states),
    ):
        store.add_trials([trial.record() for trial in preparation.proposals.first])
        facts = preparation.facts
        store.set_facts(
            task_name=directory.root.name,
            run_id=uuid.uuid4().hex,
            state=RunState.RUNNING,
            places=places_now(directory, preparation.task),
            seconds=facts.seconds,
            task=facts.task,
            machine=facts.machine,
            inputs=facts.inputs,
            sizes=facts.sizes,
            memory=facts.memory,
            passes=facts.passes,
        )
        _write_share(preparation, directory)
        # last: a run that is killed before this has trained nothing and begins again
        save_checkpoint(store, states, directory=directory, resident=())
        yield conditions.opened(directory, store=store, state_store=states)


def _write_share(preparation: Preparation, directory: RunDirectory) -> None:
    """Write the rows that the seed put aside for validation, so that they can be seen and used elsewhere."""
    if isinstance(preparation.task.dataset.validation, tuple):
        return
    # the pieces of a long text have one row
    rows = dict.fromkeys(preparation.inputs.data.all_validation.columns)
    write_text(directory.validation_rows, "".join(f"{row}\n" for row in rows))


def open_state_store(preparation: Preparation, directory: RunDirectory, conditions: RunConditions) -> TrialStateStore:
    """Return an empty state store with a task's part of the memory that parked states may take."""
    host = conditions.options.host_memory_bytes
    if host is None:
        host = free_memory_bytes(torch.device("cpu")) // 2
    return TrialStateStore(
        directory,
        memory_budget_bytes=host // conditions.num_tasks,
        device_budget_bytes=preparation.sizes.device_state_bytes // conditions.num_tasks,
        spares_on_host=preparation.machine.device.type == "cpu",
        optimizer=task_optimizer(preparation.task),
    )
