"""Barriers: trials of a group meet at a rung, are ranked together, and the best share of them goes on.

The common part of warm-up selection (one rung, one group), synchronous halving (several rungs) and Hyperband
(several groups). A barrier opens when every member has arrived or ended, so who passes does not depend on who was
trained first, in which pack or how fast.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction

from cohort.core.events import StepDone
from cohort.tuning.candidate import Candidate
from cohort.tuning.decisions import DecisionKind, Reason
from cohort.tuning.early_exit.rule import RUNG_REACHED, SELECTED, UNDERPERFORMING, Observation, Rule, Verdict
from cohort.tuning.shares import ceil_share

__all__ = ["BarrierRule"]


@dataclass(kw_only=True)
class _Rung:
    """One meeting: who is still on the way, the losses of those who came, whether it is over."""

    # Ids, not a count: a trial that fails on its way must be taken out, and one that arrived must not be.
    expected: set[int] = field(default_factory=set)
    losses: dict[int, float] = field(default_factory=dict)
    is_open: bool = False


class BarrierRule(Rule):
    """Ranks trials at rungs by raw validation loss (ties by trial id) and keeps the best share, rounded up.

    A trial that reaches a rung whose barrier has opened (it was proposed later) is judged at once: it is kept if it
    ranks within the share of all losses seen at that rung so far, its own included.
    """

    compares_trials = True

    def __init__(self, *, share: Fraction) -> None:
        self._share = share
        # By group and rung: Hyperband's brackets have rungs of the same index at other steps.
        self._rungs: dict[tuple[int, int], _Rung] = {}
        self._group_of: dict[int, int] = {}
        self._steps_of: dict[int, tuple[int, ...]] = {}
        self._next_rung_of: dict[int, int] = {}

    def group(self, candidate: Candidate) -> int:  # noqa: ARG002
        return 0

    def rung_steps(self, candidate: Candidate) -> tuple[int, ...]:
        """Return the evaluation steps, increasing and before the last, at which a trial meets its group."""
        raise NotImplementedError

    def share_at(self, index: int) -> Fraction:  # noqa: ARG002
        return self._share

    def reason_to_park(self, index: int) -> Reason:  # noqa: ARG002
        """Return what the record says about a trial that waits at a rung."""
        return RUNG_REACHED

    def add(self, candidate: Candidate) -> None:
        trial_id = candidate.trial_id
        self._group_of[trial_id] = self.group(candidate)
        self._steps_of[trial_id] = self.rung_steps(candidate)
        self._next_rung_of[trial_id] = 0
        self._expect(trial_id)

    def observe(self, observation: Observation) -> tuple[Verdict, ...]:
        """At the trial's next rung: park it, or judge it at once if its group has passed; open a full barrier."""
        trial_id = observation.trial_id
        index = self._next_rung_of[trial_id]
        steps = self._steps_of[trial_id]
        if isinstance(observation.event, StepDone) or index >= len(steps) or observation.event.step != steps[index]:
            return ()
        loss = observation.event.validation_loss
        group = self._group_of[trial_id]
        rung = self._rungs[group, index]
        # The loss at the boundary ranks, not the best so far (ALTO 5): all have done the same share of their training.
        rung.losses[trial_id] = loss
        rung.expected.discard(trial_id)
        if rung.is_open:
            return (self._judge(trial_id, group=group, index=index, judged_on_arrival=True),)
        numbers = {"rung": index, "validation_loss": loss}
        reason = self.reason_to_park(index)
        park = Verdict(trial_id=trial_id, kind=DecisionKind.PARK, reason=reason, numbers=numbers)
        return (park, *self._open_if_full(group))

    def leave(self, trial_id: int) -> tuple[Verdict, ...]:
        group = self._group_of[trial_id]
        # Its losses at rungs that have opened stay: later arrivals are ranked among all that were judged there. At a
        # rung that is still closed it is not ranked, for it would take the place of a trial that can go on.
        for (rung_group, _), rung in self._rungs.items():
            if rung_group == group:
                rung.expected.discard(trial_id)
                if not rung.is_open:
                    rung.losses.pop(trial_id, None)
        return self._open_if_full(group)

    def certain_to_stop(self) -> frozenset[int]:
        """Return the trials at a rung whose rank is already too low, however many trials still arrive there."""
        # A rank only gets worse while others arrive, and the number kept is largest when all who can come do come.
        found: set[int] = set()
        for (group, index), rung in self._rungs.items():
            if rung.is_open or not rung.losses:
                continue
            # Trials still below may reach this rung, those that wait at a closed rung below included.
            below = [self._rungs[group, lower] for lower in range(index) if (group, lower) in self._rungs]
            coming = sum(len(r.expected) for r in (rung, *below)) + sum(len(r.losses) for r in below if not r.is_open)
            most_kept = ceil_share(self.share_at(index), len(rung.losses) + coming)
            ranked = sorted(rung.losses, key=lambda trial_id: (rung.losses[trial_id], trial_id))
            found.update(ranked[most_kept:])
        return frozenset(found)

    def _expect(self, trial_id: int) -> None:
        index = self._next_rung_of[trial_id]
        if index < len(self._steps_of[trial_id]):
            self._rungs.setdefault((self._group_of[trial_id], index), _Rung()).expected.add(trial_id)

    def _open_if_full(self, group: int) -> tuple[Verdict, ...]:
        """Judge all trials that wait at rungs which no trial can reach any more."""
        verdicts: list[Verdict] = []
        index = 0
        while (rung := self._rungs.get((group, index))) is not None:
            if not rung.is_open:
                if rung.expected:
                    # Rungs above stay closed as well: trials that pass this one are still to come there.
                    break
                rung.is_open = True
                ranked = sorted(rung.losses, key=lambda trial_id: (rung.losses[trial_id], trial_id))
                verdicts.extend(self._judge(trial_id, group=group, index=index) for trial_id in ranked)
            index += 1
        return tuple(verdicts)

    def _judge(self, trial_id: int, *, group: int, index: int, judged_on_arrival: bool = False) -> Verdict:
        losses = self._rungs[group, index].losses
        own = (losses[trial_id], trial_id)
        rank = sum((loss, other) <= own for other, loss in losses.items())
        share = self.share_at(index)
        num_kept = ceil_share(share, len(losses))
        numbers = {
            "rung": index,
            "validation_loss": losses[trial_id],
            "rank": rank,
            "num_ranked": len(losses),
            "num_kept": num_kept,
            "kept_share": float(share),
            "judged_on_arrival": float(judged_on_arrival),
        }
        # Every number is recorded: the report shows why, and a resume compares the record with what it decides again.
        if rank > num_kept:
            return Verdict(trial_id=trial_id, kind=DecisionKind.STOP, reason=UNDERPERFORMING, numbers=numbers)
        self._next_rung_of[trial_id] = index + 1
        self._expect(trial_id)
        return Verdict(trial_id=trial_id, kind=DecisionKind.KEEP, reason=SELECTED, numbers=numbers)
