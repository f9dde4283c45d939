"""A run that this process writes: what all parts of it share, so that they pass one thing on and not six."""

from __future__ import annotations

from dataclasses import dataclass, field

from cohort.callbacks.callbacks import Callbacks
from cohort.checkpoints.trial_states import TrialStateStore
from cohort.core.clock import Clock
from cohort.engine.train.watching.progress import ProgressWatcher, SilentWatcher
from cohort.engine.train.watching.time_spent import TimeSpent
from cohort.launch.launched import LaunchedRanks
from cohort.runs.directory import RunDirectory
from cohort.runs.store import RunStore

__all__ = ["OpenRun", "RunOptions"]


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How a run is carried out; none of it changes an adapter.

    Attributes:
        checkpoint_seconds: Least time between checkpoints; 0: one at each step boundary, which waits for it.
        checkpoint_share: Largest share of the run's time that trials wait for checkpoints, which become rarer where
            they take long.
        host_memory_bytes: Most host memory for states of parked trials, the rest goes to files; None: half of what is
            free at the start.
        token_budget: Most tokens of a micro-batch; chosen by device when None.
        num_ranks: Processes that train at the same time, each with the whole base model; one for each of the task's
            GPUs when None. On a CPU each takes the threads of a run.
        share_gpu: In a queue, tasks on one base model may train in one executor, where that is predicted to be faster.
        launched: The processes of all but the first, where a launcher such as torchrun has started them.
    """

    checkpoint_seconds: float = 60.0
    checkpoint_share: float = 0.015
    host_memory_bytes: int | None = None
    token_budget: int | None = None
    num_ranks: int | None = None
    share_gpu: bool = True
    launched: LaunchedRanks | None = None


@dataclass(frozen=True, kw_only=True)
class OpenRun:
    """The parts of a run that its process holds until it closes them.

    Attributes:
        directory: The run's directory, locked.
        store: The run's record.
        state_store: States of trials that are out of the bank.
        clock: Measures all of the run's time.
        watcher: Receives progress and notes.
        options: How the run is carried out.
        callbacks: The caller's functions, called between two steps.
        time_spent: Adds up the run's seconds by activity.
    """

    directory: RunDirectory
    store: RunStore
    state_store: TrialStateStore
    clock: Clock
    watcher: ProgressWatcher = field(default_factory=SilentWatcher)
    options: RunOptions = field(default_factory=RunOptions)
    callbacks: Callbacks = field(default_factory=Callbacks)
    time_spent: TimeSpent = field(init=False)

    def __post_init__(self) -> None:
        # one for all parts: each second is counted once
        object.__setattr__(self, "time_spent", TimeSpent(self.clock))
