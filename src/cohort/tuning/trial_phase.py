"""The phases of a trial, and which may follow which."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

__all__ = ["TrialPhase", "may_become"]


class TrialPhase(StrEnum):
    """Where a trial is. The last three are final, unless a person resumes a stopped trial."""

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
        """Whether nothing more happens to the trial by itself."""
        return self in (TrialPhase.FINISHED, TrialPhase.STOPPED, TrialPhase.FAILED)


def may_become(state: TrialPhase) -> frozenset[TrialPhase]:
    return _LEGAL[state]


# A parked trial never becomes running: it is READY first, by a verdict, or two verdicts could disagree.
_LEGAL: Mapping[TrialPhase, frozenset[TrialPhase]] = {
    TrialPhase.WAITING: frozenset({TrialPhase.RUNNING, TrialPhase.STOPPED, TrialPhase.FAILED}),
    TrialPhase.RUNNING: frozenset(set(TrialPhase) - {TrialPhase.WAITING, TrialPhase.RUNNING}),
    TrialPhase.PARKED: frozenset({TrialPhase.READY, TrialPhase.STOPPED, TrialPhase.FAILED}),
    TrialPhase.READY: frozenset({TrialPhase.RUNNING, TrialPhase.STOPPED, TrialPhase.FAILED}),
    TrialPhase.FINISHED: frozenset(),
    # only by a person
    TrialPhase.STOPPED: frozenset({TrialPhase.READY}),
    TrialPhase.FAILED: frozenset(),
}
