"""The first entries of a run's record, and the state store for its states."""

from __future__ import annotations

import uuid

import torch

from cohort.engine.copied_runs import places_now
from cohort.engine.machine.machine import free_memory_bytes
from cohort.engine.prepare.preparation import Preparation
from cohort.engine.state.checkpoints import save_checkpoint
from cohort.engine.state.trial_states import TrialStateStore
from cohort.engine.train.open_run import RunOptions
from cohort.runs.directory import RunDirectory
from cohort.runs.facts import RunState
from cohort.runs.store import RunStore

__all__ = ["begin_record", "open_state_store"]


def open_state_store(
    preparation: Preparation, directory: RunDirectory, *, options: RunOptions, num_tasks: int = 1
) -> TrialStateStore:
    """Return an empty state store with a task's part of the memory that parked states may take."""
    host = options.host_memory_bytes
    if host is None:
        host = free_memory_bytes(torch.device("cpu")) // 2
    return TrialStateStore(
        directory,
        memory_budget_bytes=host // num_tasks,
        device_budget_bytes=preparation.sizes.device_state_bytes // num_tasks,
    )


def begin_record(
    preparation: Preparation, store: RunStore, state_store: TrialStateStore, *, directory: RunDirectory
) -> None:
    """Record trials and inputs of a run that has done nothing yet, with a checkpoint to go back to."""
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
    save_checkpoint(store, state_store, directory=directory, resident=())
    store.set_facts(has_begun=True)
