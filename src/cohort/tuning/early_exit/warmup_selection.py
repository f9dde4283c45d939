"""Warm-up selection: all trials warm up, the best share by validation loss goes on, in several rounds (ALTO 5.2)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from cohort.core.events import Evaluated
from cohort.tuning.candidate import Candidate
from cohort.tuning.decisions import Reason
from cohort.tuning.early_exit.barrier import BarrierRule, CurveView
from cohort.tuning.early_exit.rule import RUNG_REACHED, Observation, Verdict
from cohort.tuning.share_counts import ceil_share
from cohort.tuning.trajectory import curve_noise

__all__ = ["WARMED_UP", "Selection", "WarmupSelectionRule", "floored_shares", "has_choice"]

# evaluations that a curve's noise is measured on: its fall from the first steps is no noise
_NOISE_WINDOW = 8
# of fewer, what is jump and what is bend cannot be told
_FEWEST_FOR_NOISE = 4

WARMED_UP = Reason("warmed up", sentence="The trial has done its warm-up and waits for the others.")


@dataclass(frozen=True, kw_only=True)
class Selection:
    """One comparison of the trials that are left.

    Attributes:
        at: Share of the planned steps at which it takes place.
        fraction: Share of the trials compared that go on, rounded up.
        at_least: Fewest trials that go on.
        noise_factor: None: trials are compared by their last evaluation alone. A number: a trial ends only if it ranks
            too low by where its curve leads as well, and stands above the best by more than this multiple of the noise
            of either curve (:func:`~cohort.tuning.trajectory.curve_noise`).
    """

    at: Fraction
    fraction: Fraction
    at_least: int = 1
    noise_factor: float | None = None

    def num_kept(self, num_ranked: int) -> int:
        """Return how many of ``num_ranked`` trials go on whatever their rows say."""
        return max(self.at_least, ceil_share(self.fraction, num_ranked))


def floored_shares(selections: Sequence[Selection], floor: Fraction) -> tuple[Fraction, ...]:
    """Return where trials are compared if they are not compared before ``floor``, which may be 0."""
    # trials that could not be compared before have to have gone on before they are compared again
    return tuple(max(selection.at, (index + 1) * floor) for index, selection in enumerate(selections))


def has_choice(selections: Sequence[Selection], index: int, num_trials: int) -> bool:
    """Return whether a third or later comparison takes place among ``num_trials`` trials.

    It does not among so few that the one before it ended none: of a handful, all are trained to their end.
    """
    return index < 2 or num_trials > selections[index - 1].at_least


class WarmupSelectionRule(BarrierRule):
    """A barrier at the end of warm-up, later ones for those that went on, and further ones for the undecided.

    The paper selects once and keeps a quarter. In a grid of several batch sizes the large ones have done few steps by
    then and look worse than they end (docs/early-exit-study.md), so we keep more at first and compare again.
    """

    name = "warmup_selection"

    def __init__(
        self,
        selections: Sequence[Selection],
        *,
        risk: float = 1.0,
        tolerance: float = 0.0,
        least_steps: int = 1,
    ) -> None:
        """Compare trials at each of ``selections``.

        Args:
            selections: At increasing shares. A trial meets the first at the end of its own warm-up, whatever ``at`` is.
            risk, tolerance, least_steps: As in :class:`~cohort.tuning.early_exit.rule.CommonSettings`.
        """
        super().__init__(share=selections[0].fraction, risk=risk, tolerance=tolerance, least_steps=least_steps)
        self._selections = tuple(selections)
        self._planned_steps: dict[int, int] = {}
        # by trial and step of an evaluation: the noise of its curve up to there
        self._noise: dict[tuple[int, int], float] = {}

    def add(self, candidate: Candidate) -> None:
        super().add(candidate)
        self._planned_steps[candidate.trial_id] = candidate.planned_steps

    def observe(self, observation: Observation) -> tuple[Verdict, ...]:
        if isinstance(observation.event, Evaluated):
            recent = [point.value for point in observation.trajectory.validation[-_NOISE_WINDOW:]]
            noise = curve_noise(recent) if len(recent) >= _FEWEST_FOR_NOISE else 0.0
            self._noise[observation.trial_id, observation.event.step] = noise
        return super().observe(observation)

    def rung_steps(self, candidate: Candidate) -> tuple[int, ...]:
        """Return the end of warm-up and the later selections, where there is something left to save."""
        # Such a trial finishes at its warm-up's end: it is not ranked, and its result competes as any other.
        if candidate.warmup_steps >= candidate.planned_steps:
            return ()
        steps: list[int] = []
        for share in self._shares(candidate):
            step = candidate.first_evaluation_at_share(share, after=steps[-1] if steps else 0)
            if step is None:
                break
            steps.append(step)
        return tuple(steps)

    def _shares(self, candidate: Candidate) -> Iterator[Fraction]:
        """Yield where a trial is compared, then where those that the last selection leaves undecided are again."""
        floor = self.floor.share
        # a short run may not be evaluated at the warm-up's end, if nothing is compared there
        yield max(Fraction(candidate.warmup_steps, candidate.planned_steps), floor)
        later = floored_shares(self._selections, floor)[1:]
        yield from later
        # at multiples of the second selection's share, which is also where they would have been without a third
        share = later[0] if later else Fraction(1)
        while later and share < 1:
            if share > later[-1]:
                yield share
            share += later[0]

    def goes_on_to(self, group: int, index: int) -> bool:
        """Return whether the last selection left more than it wanted, if this rung is a later one."""
        if index < len(self._selections):
            # those before the third are met by all, also where they can end none: a trial may still be on its way
            num_left = self.num_that_went_on(group, index - 1)
            is_worth_it = index < 2 or num_left > self._selections[index].at_least
            return is_worth_it and has_choice(self._selections, index, self.num_ranked(group, 0))
        return self.num_that_went_on(group, index - 1) > self._num_wanted(group)

    def num_kept(self, group: int, index: int, *, num_ranked: int) -> int:
        if index >= len(self._selections):
            return self._num_wanted(group)
        return self._selections[index].num_kept(num_ranked)

    def looks_at_curves(self, index: int) -> bool:
        return index > 0 and self._noise_factor(index) is not None

    def _noise_factor(self, index: int) -> float | None:
        return self._selections[min(index, len(self._selections) - 1)].noise_factor

    def curve_view(self, group: int, index: int) -> CurveView | None:
        factor = self._noise_factor(index)
        if factor is None or not index:
            return None
        found, before = self.standings(group, index), self.standings(group, index - 1)
        at_end = {
            trial_id: standing.gone_on(before[trial_id], self._way_left(trial_id, index))
            for trial_id, standing in found.items()
        }
        compared_by_loss = all(standing.cost == standing.loss for standing in found.values())
        noise = {
            trial_id: factor * self._noise[trial_id, self.steps_of(trial_id)[index]] if compared_by_loss else 0.0
            for trial_id in found
        }
        return CurveView(at_end=at_end, noise=noise)

    def _way_left(self, trial_id: int, index: int) -> float:
        """Return how far a trial's end is, in distances between this rung and the one before it, both in log steps."""
        before, now = self.steps_of(trial_id)[index - 1 : index + 1]
        # rounded: a logarithm has other last bits on other machines, and a resume compares what was recorded
        return round(math.log(self._planned_steps[trial_id] / now) / math.log(now / before), 3)

    def _num_wanted(self, group: int) -> int:
        """Return how many trials the last selection keeps whatever the rows say."""
        last = len(self._selections) - 1
        return self.num_kept(group, last, num_ranked=self.num_ranked(group, last))

    def share_at(self, index: int) -> Fraction:
        return self._selections[min(index, len(self._selections) - 1)].fraction

    def reason_to_park(self, index: int) -> Reason:
        return WARMED_UP if index == 0 else RUNG_REACHED
