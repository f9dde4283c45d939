"""A run that this process writes: what all parts of it share, so that they pass one thing on and not six."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from cohort.checkpoints.trial_states import TrialStateStore
from cohort.core.clock import Clock, SystemClock
from cohort.core.errors import InputError, Problem
from cohort.core.input_values.call_arguments import checks_arguments
from cohort.core.input_values.plain_values import plain_value
from cohort.core.source_location import Place
from cohort.engine.callbacks.callbacks import Callbacks
from cohort.engine.train.watching.progress import ProgressWatcher, SilentWatcher
from cohort.engine.train.watching.time_spent import TimeSpent
from cohort.ranks.launch.launched import LaunchedRanks
from cohort.runs.directory import RunDirectory
from cohort.runs.store import RunStore

__all__ = ["OpenRun", "RunConditions", "RunOptions"]


# from which value on, and whether it is whole; None is allowed where it is the default
_LEAST = {
    "checkpoint_seconds": (0, False),
    "checkpoint_share": (0, False),
    "host_memory_bytes": (0, True),
    "token_budget": (1, True),
    "num_ranks": (1, True),
}


@dataclass(frozen=True, kw_only=True, init=False)
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

    Raises:
        InputError: there is no such option, or a value is not accepted; all problems at once.
    """

    checkpoint_seconds: float = 60.0
    checkpoint_share: float = 0.015
    host_memory_bytes: int | None = None
    token_budget: int | None = None
    num_ranks: int | None = None
    share_gpu: bool = True
    launched: LaunchedRanks | None = None

    @checks_arguments("RunOptions")
    def __init__(
        self,
        *,
        checkpoint_seconds: float = 60.0,
        checkpoint_share: float = 0.015,
        host_memory_bytes: int | None = None,
        token_budget: int | None = None,
        num_ranks: int | None = None,
        share_gpu: bool = True,
        launched: LaunchedRanks | None = None,
    ) -> None:
        """Set the options."""
        given: dict[str, object] = {
            "checkpoint_seconds": checkpoint_seconds,
            "checkpoint_share": checkpoint_share,
            "host_memory_bytes": host_memory_bytes,
            "token_budget": token_budget,
            "num_ranks": num_ranks,
            "share_gpu": share_gpu,
            "launched": launched,
        }
        given = {name: plain_value(value) for name, value in given.items()}
        if problems := list(_option_problems(given)):
            raise InputError(problems)
        for name, value in given.items():
            # a frozen dataclass refuses plain assignment even while it is made
            object.__setattr__(self, name, value)


def _option_problems(given: Mapping[str, object]) -> Iterator[Problem]:
    for name, (least, is_whole) in _LEAST.items():
        value, default = given[name], getattr(RunOptions, name)
        kinds = (int,) if is_whole else (int, float)
        is_number = isinstance(value, kinds) and not isinstance(value, bool)
        # NaN compares false with any bound
        if (value is None and default is None) or (is_number and value >= least):  # type: ignore[operator]
            continue
        allowed = f"{'a whole number' if is_whole else 'a number'} of at least {least}"
        allowed += ", or None" if default is None else ""
        yield _wrong(name, value, allowed=allowed, hint=f"Leave it out: the default is {default}.")
    if not isinstance(given["share_gpu"], bool):
        yield _wrong(
            "share_gpu", given["share_gpu"], allowed="True or False", hint="Leave it out: the default is True."
        )


def _wrong(name: str, value: object, *, allowed: str, hint: str) -> Problem:
    where = Place(file="RunOptions", key=(name,))
    return Problem(where=where, found=repr(value)[:60], allowed=allowed, hint=hint)


@dataclass(frozen=True, kw_only=True)
class RunConditions:
    """Under which conditions a process carries out a run.

    Attributes:
        clock: Measures all of the run's time.
        watcher: Receives progress and notes.
        options: How the run is carried out.
        callbacks: The caller's functions, called between two steps.
        num_tasks: Tasks that share the memory for parked states.
    """

    clock: Clock = field(default_factory=SystemClock)
    watcher: ProgressWatcher = field(default_factory=SilentWatcher)
    options: RunOptions = field(default_factory=RunOptions)
    callbacks: Callbacks = field(default_factory=Callbacks)
    num_tasks: int = 1

    def opened(self, directory: RunDirectory, *, store: RunStore, state_store: TrialStateStore) -> OpenRun:
        """Return a run whose parts are open."""
        return OpenRun(
            directory=directory,
            store=store,
            state_store=state_store,
            clock=self.clock,
            watcher=self.watcher,
            options=self.options,
            callbacks=self.callbacks,
            num_tasks=self.num_tasks,
        )


@dataclass(frozen=True, kw_only=True)
class OpenRun(RunConditions):
    """The parts of a run that its process holds until it closes them.

    Attributes:
        directory: The run's directory, locked.
        store: The run's record.
        state_store: States of trials that are out of the bank.
        time_spent: Adds up the run's seconds by activity.
    """

    directory: RunDirectory
    store: RunStore
    state_store: TrialStateStore
    time_spent: TimeSpent = field(init=False)

    def __post_init__(self) -> None:
        # one for all parts: each second is counted once
        object.__setattr__(self, "time_spent", TimeSpent(self.clock))
