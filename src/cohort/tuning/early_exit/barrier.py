"""Barriers: trials of a group meet at a rung, are ranked together, and the best share of them goes on.

The common part of warm-up selection (one rung, one group), synchronous halving (several rungs) and Hyperband
(several groups). A barrier opens when every member has arrived or ended, so who passes does not depend on who was
trained first, in which pack or how fast. A trial that ranks too low goes on if the rows do not tell it from the best.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from cohort.core.events import StepDone
from cohort.tuning.candidate import Candidate
from cohort.tuning.decisions import DecisionKind, Reason
from cohort.tuning.early_exit.rule import (
    RUNG_REACHED,
    SELECTED,
    UNDECIDED,
    UNDERPERFORMING,
    Observation,
    Rule,
    Verdict,
)
from cohort.tuning.early_exit.separation import Standing, chances, numbers_of_chance
from cohort.tuning.early_exit.step_floor import StepFloor
from cohort.tuning.share_counts import ceil_share

__all__ = ["BarrierRule", "CurveView"]


@dataclass(kw_only=True)
class _Rung:
    """One meeting: who is still on the way, how those who came stand, whether it is over."""

    # Ids, not a count: a trial that fails on its way must be taken out, and one that arrived must not be.
    expected: set[int] = field(default_factory=set)
    standings: dict[int, Standing] = field(default_factory=dict)
    is_open: bool = False


@dataclass(frozen=True, kw_only=True)
class CurveView:
    """What the curves of the trials at a rung say besides their last evaluation.

    Attributes:
        at_end: Where each trial would stand after its last step.
        noise: By trial, how far the curve jumps, in nats: a trial this close to another is not told from it.
    """

    at_end: Mapping[int, Standing]
    noise: Mapping[int, float]


@dataclass(frozen=True, kw_only=True)
class _Ranking:
    """Trials in their order, and the chance of those that rank too low of being the best after all."""

    standings: Mapping[int, Standing]
    ranked: Sequence[int]
    chance_of: Mapping[int, float]

    @property
    def best(self) -> Standing:
        return self.standings[self.ranked[0]]

    def rank(self, trial_id: int) -> int:
        return self.ranked.index(trial_id) + 1

    def ends(self, trial_id: int, *, risk: float) -> bool:
        """Return whether the trial ranks too low and the rows tell it from the best."""
        return trial_id in self.chance_of and self.chance_of[trial_id] <= risk


class BarrierRule(Rule):
    """Ranks trials at rungs by their standing (ties by trial id); the best share, rounded up, and the undecided go on.

    Undecided are those that have a chance above ``risk`` of being better than the best of the rung by ``tolerance``. A
    trial that reaches a rung whose barrier has opened (it was proposed later) is judged at once, among all seen there.
    """

    compares_trials = True

    def __init__(self, *, share: Fraction, risk: float = 1.0, tolerance: float = 0.0, least_steps: int = 1) -> None:
        self._share, self._risk, self._tolerance = share, risk, tolerance
        self.floor = StepFloor(least_steps)
        # By group and rung: Hyperband's brackets have rungs of the same index at other steps.
        self._rungs: dict[tuple[int, int], _Rung] = {}
        self._group_of: dict[int, int] = {}
        self._steps_of: dict[int, tuple[int, ...]] = {}
        self._next_rung_of: dict[int, int] = {}
        # how many each rung let go on
        self._kept: dict[tuple[int, int], int] = {}
        # added and not placed yet: the floor follows from all that are there when the first result comes
        self._unplaced: list[Candidate] = []

    def group(self, candidate: Candidate) -> int:  # noqa: ARG002
        return 0

    def rung_steps(self, candidate: Candidate) -> tuple[int, ...]:
        """Return the evaluation steps, increasing and before the last, at which a trial meets its group."""
        raise NotImplementedError

    def share_at(self, index: int) -> Fraction:  # noqa: ARG002
        return self._share

    def num_kept(self, group: int, index: int, *, num_ranked: int) -> int:  # noqa: ARG002
        """Return how many of the trials ranked at a rung go on whatever the rows say."""
        return ceil_share(self.share_at(index), num_ranked)

    def goes_on_to(self, group: int, index: int) -> bool:  # noqa: ARG002
        """Return whether those kept at the rung before meet at rung ``index``, where they reach it."""
        return True

    def num_that_went_on(self, group: int, index: int) -> int:
        """Return how many trials a rung has let go on so far."""
        return self._kept.get((group, index), 0)

    def num_ranked(self, group: int, index: int) -> int:
        """Return how many trials a rung has compared so far."""
        rung = self._rungs.get((group, index))
        return 0 if rung is None else len(rung.standings)

    def looks_at_curves(self, index: int) -> bool:  # noqa: ARG002
        """Return whether curves have a say at rung ``index``."""
        return False

    def curve_view(self, group: int, index: int) -> CurveView | None:  # noqa: ARG002
        """Return what the curves say at a rung, if they have a say there; else None.

        A trial then ends only if it ranks too low, and can be told from the best, now and at its end, and if it stands
        above the best by more than either curve jumps.
        """
        return None

    def standings(self, group: int, index: int) -> Mapping[int, Standing]:
        """Return how the trials stand that a rung has compared."""
        return self._rungs[group, index].standings

    def steps_of(self, trial_id: int) -> tuple[int, ...]:
        """Return the steps at which a trial meets its group."""
        return self._steps_of[trial_id]

    def reason_to_park(self, index: int) -> Reason:  # noqa: ARG002
        """Return what the record says about a trial that waits at a rung."""
        return RUNG_REACHED

    def add(self, candidate: Candidate) -> None:
        self.floor.add(candidate)
        self._unplaced.append(candidate)

    def _place(self) -> None:
        """Say where each trial that was added meets its group."""
        for candidate in self._unplaced:
            trial_id = candidate.trial_id
            self._group_of[trial_id] = self.group(candidate)
            self._steps_of[trial_id] = self.rung_steps(candidate)
            self._next_rung_of[trial_id] = 0
            self._expect(trial_id)
        self._unplaced.clear()

    def observe(self, observation: Observation) -> tuple[Verdict, ...]:
        """At the trial's next rung: park it, or judge it at once if its group has passed; open a full barrier."""
        self._place()
        trial_id = observation.trial_id
        index = self._next_rung_of[trial_id]
        steps = self._steps_of[trial_id]
        if isinstance(observation.event, StepDone) or index >= len(steps) or observation.event.step != steps[index]:
            return ()
        group = self._group_of[trial_id]
        rung = self._rungs[group, index]
        # The loss at the boundary ranks, not the best so far (ALTO 5): all have done the same share of their training.
        rung.standings[trial_id] = observation.standing
        rung.expected.discard(trial_id)
        if rung.is_open:
            return self._judge([trial_id], group=group, index=index, judged_on_arrival=True)
        numbers = {"rung": index, "validation_loss": observation.event.validation_loss}
        reason = self.reason_to_park(index)
        park = Verdict(trial_id=trial_id, kind=DecisionKind.PARK, reason=reason, numbers=numbers)
        return (park, *self._open_if_full(group))

    def leave(self, trial_id: int) -> tuple[Verdict, ...]:
        self._place()
        group = self._group_of[trial_id]
        # Its losses at rungs that have opened stay: later arrivals are ranked among all that were judged there. At a
        # rung that is still closed it is not ranked, for it would take the place of a trial that can go on.
        for (rung_group, _), rung in self._rungs.items():
            if rung_group == group:
                rung.expected.discard(trial_id)
                if not rung.is_open:
                    rung.standings.pop(trial_id, None)
        return self._open_if_full(group)

    def certain_to_stop(self) -> frozenset[int]:
        """Return the trials at a rung whose rank is already too low, however many trials still arrive there.

        None where rows have a say: they are compared with the best of the rung, which may still be on its way.
        """
        # before the first result nothing is certain, and being asked must not fix the floor: a replay asks nothing
        if self._risk < 1 or not self._rungs:
            return frozenset()
        self._place()
        # A rank only gets worse while others arrive, and the number kept is largest when all who can come do come.
        found: set[int] = set()
        for (group, index), rung in self._rungs.items():
            # where curves have a say a trial may go on whatever its rank
            if rung.is_open or not rung.standings or self.looks_at_curves(index):
                continue
            # Trials still below may reach this rung, those that wait at a closed rung below included.
            below = [self._rungs[group, lower] for lower in range(index) if (group, lower) in self._rungs]
            coming = sum(len(r.expected) for r in (rung, *below))
            coming += sum(len(r.standings) for r in below if not r.is_open)
            most_kept = self.num_kept(group, index, num_ranked=len(rung.standings) + coming)
            found.update(_ranked(rung.standings)[most_kept:])
        return frozenset(found)

    def compares_again(self) -> bool:
        # trials are placed at their first event: until then all rungs are ahead of them
        return bool(self._unplaced) or any(not rung.is_open for rung in self._rungs.values())

    def _expect(self, trial_id: int) -> None:
        index, group = self._next_rung_of[trial_id], self._group_of[trial_id]
        if index >= len(self._steps_of[trial_id]):
            return
        if not self.goes_on_to(group, index):
            self._next_rung_of[trial_id] = len(self._steps_of[trial_id])
            return
        self._rungs.setdefault((group, index), _Rung()).expected.add(trial_id)

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
                verdicts.extend(self._judge(_ranked(rung.standings), group=group, index=index))
            index += 1
        return tuple(verdicts)

    def _rank(self, standings: Mapping[int, Standing], trial_ids: Sequence[int], *, num_kept: int) -> _Ranking:
        """Rank trials, and say of those of ``trial_ids`` that rank too low whether rows tell them from the best."""
        ranked = _ranked(standings)
        too_low = [trial_id for trial_id in ranked[num_kept:] if trial_id in trial_ids]
        found = chances(
            [standings[trial_id] for trial_id in too_low],
            standings[ranked[0]],
            risk=self._risk,
            tolerance=self._tolerance,
        )
        return _Ranking(standings=standings, ranked=ranked, chance_of={each: found[each] for each in too_low})

    def _judge(
        self, trial_ids: Sequence[int], *, group: int, index: int, judged_on_arrival: bool = False
    ) -> tuple[Verdict, ...]:
        """Return what becomes of trials that wait at an open rung."""
        # all may have ended before they came
        if not trial_ids:
            return ()
        rung = self._rungs[group, index]
        num_kept = self.num_kept(group, index, num_ranked=len(rung.standings))
        now = self._rank(rung.standings, trial_ids, num_kept=num_kept)
        curves = self.curve_view(group, index)
        at_end = None if curves is None else self._rank(curves.at_end, trial_ids, num_kept=num_kept)
        verdicts = []
        for trial_id in trial_ids:
            standing, rank = rung.standings[trial_id], now.rank(trial_id)
            numbers = {
                "rung": index,
                "validation_loss": standing.loss,
                "rank": rank,
                "num_ranked": len(now.ranked),
                "num_kept": num_kept,
                "kept_share": float(self.share_at(index)),
                "judged_on_arrival": float(judged_on_arrival),
            }
            if standing.cost != standing.loss:
                numbers["cost"] = standing.cost
            ends = now.ends(trial_id, risk=self._risk)
            # Every number is recorded: the report shows why, and a resume compares the record with what it decides.
            if rank > num_kept:
                numbers |= numbers_of_chance(
                    now.chance_of[trial_id],
                    risk=self._risk,
                    tolerance=self._tolerance,
                    num_rows=len(standing.rows),
                    best_trial=now.best.trial_id,
                )
                if curves is not None and at_end is not None:
                    noise = max(curves.noise[trial_id], curves.noise[now.best.trial_id])
                    numbers |= {"cost_at_end": curves.at_end[trial_id].cost, "rank_at_end": at_end.rank(trial_id)}
                    numbers |= {"noise": noise}
                    ends = ends and at_end.ends(trial_id, risk=self._risk) and standing.cost - now.best.cost > noise
            if ends:
                verdicts.append(_verdict(trial_id, DecisionKind.STOP, UNDERPERFORMING, numbers))
                continue
            self._next_rung_of[trial_id] = index + 1
            verdicts.append(_verdict(trial_id, DecisionKind.KEEP, SELECTED if rank <= num_kept else UNDECIDED, numbers))
        # who goes on to the next rung may depend on how many were kept here
        for verdict in verdicts:
            if verdict.kind is DecisionKind.KEEP:
                self._kept[group, index] = self._kept.get((group, index), 0) + 1
        for verdict in verdicts:
            if verdict.kind is DecisionKind.KEEP:
                self._expect(verdict.trial_id)
        return tuple(verdicts)


def _ranked(standings: Mapping[int, Standing]) -> list[int]:
    """Return the trials of some standings, the best first."""
    return sorted(standings, key=lambda trial_id: standings[trial_id].order)


def _verdict(trial_id: int, kind: DecisionKind, reason: Reason, numbers: Mapping[str, float]) -> Verdict:
    return Verdict(trial_id=trial_id, kind=kind, reason=reason, numbers=numbers)
