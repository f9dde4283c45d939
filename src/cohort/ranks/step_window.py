"""Several steps of each trial in one call, so that ranks wait for each other, and for rank 0, once a window."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Protocol

from cohort.core.events import StepDone
from cohort.ranks.calls import portable
from cohort.training.launched_step import LaunchedStep
from cohort.training.optimizers.optimizer import UnfinishedUpdateError

__all__ = [
    "MOST_AHEAD_STEPS",
    "MOST_STEPS",
    "StepWindow",
    "Stepping",
    "ahead_steps",
    "joined",
    "pipeline_window_steps",
    "run_window",
    "window_steps",
]

# within a window nothing is decided, and requests wait
WINDOW_SECONDS = 2.0
MOST_STEPS = 16
# of one rank, which reads each step while the next one runs; at a boundary its GPU runs dry for some milliseconds
MOST_AHEAD_STEPS = 64
# a step of a GPU takes at least as long as its launches
LEAST_STEP_SECONDS = 0.03
# of a pipeline's window, in which it fills and drains
MOST_FILLING = 0.03
FLOPS_PER_SECOND = {"cuda": 4e14, "cpu": 2e10}


@dataclass(frozen=True, kw_only=True)
class StepWindow:
    """What a window brought.

    Attributes:
        rounds: The first steps of all trials, then the second ones, and so on.
        error: What ended it early on a rank; the steps before are done.
        broken: Trials whose update broke off, or whose steps could not be read: they have to be loaded again from a
            state.
    """

    rounds: tuple[tuple[StepDone, ...], ...]
    error: Exception | None = None
    broken: tuple[int, ...] = ()

    def __getstate__(self) -> dict[str, Any]:
        """Let a window travel whose error cannot."""
        return {**vars(self), "error": None if self.error is None else portable(self.error)}


class Stepping(Protocol):
    """Steps trials together.

    Attributes:
        launches_ahead: Whether the host is free while a step is computed, so that it can launch the next one.
    """

    launches_ahead: bool

    @property
    def resident(self) -> tuple[int, ...]: ...
    def expect_step(self, trial_ids: Collection[int]) -> None: ...
    def launch_step(self, trial_ids: Sequence[int] | None = None) -> LaunchedStep: ...


def run_window(executor: Stepping, quotas: Mapping[int, int]) -> StepWindow:
    """Run up to ``quotas`` steps of each trial, all that are left together; a trial whose loss is no number stops.

    Where a step is launched before the one before it is read, such a trial has taken one more by then.
    """
    rounds: list[tuple[StepDone, ...]] = []
    left = {trial_id: count for trial_id, count in quotas.items() if count > 0}
    unread: deque[LaunchedStep] = deque()
    error: Exception | None = None
    broken: tuple[int, ...] = ()
    stepping = tuple(left)
    while left or unread:
        if left:
            try:
                # the next window begins with all that are still here
                executor.expect_step([trial_id for trial_id, count in left.items() if count > 1] or executor.resident)
                unread.append(executor.launch_step(tuple(left)))
            except Exception as raised:
                error, broken = raised, tuple(left) if isinstance(raised, UnfinishedUpdateError) else ()
                left = {}
        left = {trial_id: count - 1 for trial_id, count in left.items() if count > 1}
        while len(unread) > (1 if executor.launches_ahead and left else 0):
            try:
                rounds.append(unread.popleft().events())
            except Exception as raised:
                # the bank is past steps that are on no record
                return StepWindow(rounds=tuple(rounds), error=raised, broken=stepping)
            ended = {event.trial_id for event in rounds[-1] if not math.isfinite(event.loss)}
            left = {trial_id: count for trial_id, count in left.items() if trial_id not in ended}
    return StepWindow(rounds=tuple(rounds), error=error, broken=broken)


def joined(windows: Iterable[StepWindow]) -> StepWindow:
    """Return the windows of several ranks as one, round by round; the error is the first rank's that has one."""
    found = list(windows)
    empty: tuple[StepDone, ...] = ()
    return StepWindow(
        rounds=tuple(sum(parts, empty) for parts in zip_longest(*(each.rounds for each in found), fillvalue=empty)),
        error=next((each.error for each in found if each.error is not None), None),
        broken=tuple(trial_id for each in found for trial_id in each.broken),
    )


def window_steps(*, num_ranks: int, device_type: str, flops_per_step: float) -> int:
    """Return the most steps of a window: one where there is one rank, else what takes about two seconds."""
    if num_ranks == 1:
        return 1
    return min(MOST_STEPS, ahead_steps(device_type=device_type, flops_per_step=flops_per_step))


def ahead_steps(*, device_type: str, flops_per_step: float) -> int:
    """Return the most steps of one rank between two boundaries: what takes about two seconds.

    By arithmetic and not by a clock: on a GPU the last bits of a trial depend on its pack, and so on when trials come
    and go.
    """
    seconds = max(LEAST_STEP_SECONDS, flops_per_step / FLOPS_PER_SECOND[device_type])
    return max(1, min(MOST_AHEAD_STEPS, int(WINDOW_SECONDS / seconds)))


def pipeline_window_steps(*, num_stages: int, micro_batches_per_step: float) -> int:
    """Return the steps of a window of a pipeline: filling and draining it take at most 3 %, or the window is longest.

    Args:
        micro_batches_per_step: Of all trials together.
    """
    wanted = (num_stages - 1) / MOST_FILLING
    return max(1, min(MOST_STEPS, math.ceil(wanted / max(micro_batches_per_step, 1e-9))))
