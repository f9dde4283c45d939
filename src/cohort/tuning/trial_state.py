"""Where a trial is in its life, and where it can go from there."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

__all__ = ["TrialState", "may_become"]


class TrialState(StrEnum):
    """Where a trial is. The last three are final."""

    WAITING = "waiting"
    """Not begun."""
    RUNNING = "running"
    """Resident, or to be made resident again after a restart."""
    PARKED = "parked"
    """Out of its slot, awaiting a verdict."""
    READY = "ready"
    """Out of its slot, free to go on."""
    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"

    @property
    def is_final(self) -> bool:
        """Whether nothing more can happen to the trial."""
        return self in (TrialState.FINISHED, TrialState.STOPPED, TrialState.FAILED)


def may_become(state: TrialState) -> frozenset[TrialState]:
    """Return the states that may follow ``state``."""
    return _LEGAL[state]


_LEGAL: Mapping[TrialState, frozenset[TrialState]] = {
    TrialState.WAITING: frozenset({TrialState.RUNNING, TrialState.FAILED}),
    TrialState.RUNNING: frozenset(set(TrialState) - {TrialState.WAITING, TrialState.RUNNING}),
    TrialState.PARKED: frozenset({TrialState.READY, TrialState.STOPPED, TrialState.FAILED}),
    TrialState.READY: frozenset({TrialState.RUNNING, TrialState.FAILED}),
    TrialState.FINISHED: frozenset(),
    TrialState.STOPPED: frozenset(),
    TrialState.FAILED: frozenset(),
}
