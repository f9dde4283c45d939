"""Where a trial stands, in the words that users see, and what it can become."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

__all__ = ["TrialStatus", "may_become"]


class TrialStatus(StrEnum):
    """Where a trial stands. The last three are final, unless a person resumes a stopped trial.

    The study holds it while a process trains; a reader of the run's database finds it from the recorded decisions.
    """

    WAITING = "waiting"
    """Not begun."""
    RUNNING = "running"
    """Resident, or to be made resident again after a restart."""
    PARKED = "parked"
    """Out of its slot, for a verdict or for the sake of others."""
    STOPPED = "stopped"
    COMPLETED = "completed"
    FAILED = "failed"

    @property
    def is_final(self) -> bool:
        """Whether nothing more happens to the trial by itself."""
        return self in (TrialStatus.STOPPED, TrialStatus.COMPLETED, TrialStatus.FAILED)

    @property
    def label(self) -> str:
        """The word for people; the value is what JSON holds."""
        return "paused" if self is TrialStatus.PARKED else self.value


def may_become(status: TrialStatus) -> frozenset[TrialStatus]:
    return _LEGAL[status]


_LEGAL: Mapping[TrialStatus, frozenset[TrialStatus]] = {
    TrialStatus.WAITING: frozenset({TrialStatus.RUNNING, TrialStatus.STOPPED, TrialStatus.FAILED}),
    TrialStatus.RUNNING: frozenset(set(TrialStatus) - {TrialStatus.WAITING, TrialStatus.RUNNING}),
    TrialStatus.PARKED: frozenset({TrialStatus.RUNNING, TrialStatus.STOPPED, TrialStatus.FAILED}),
    # only by a person
    TrialStatus.STOPPED: frozenset({TrialStatus.PARKED}),
    TrialStatus.COMPLETED: frozenset(),
    TrialStatus.FAILED: frozenset(),
}
