"""Reports a study's trials to the sampler that proposed them, from the study's decisions in their order."""

from __future__ import annotations

from collections.abc import Sequence

from cohort.tuning.decisions import Decision, DecisionKind
from cohort.tuning.objective_metric import LOSS, ObjectiveMetric
from cohort.tuning.samplers import Sampler

__all__ = ["SearchFeedback"]


class SearchFeedback:
    """Tells a sampler of each trial at every comparison it has come to, and at its end.

    What the sampler learns depends on the decisions and their order, not on how calls group them. It learns nothing of
    trials that a person added, which are none of its proposals, and they make no room for a new one.
    """

    def __init__(self, sampler: Sampler, *, metric: ObjectiveMetric = LOSS) -> None:
        self._sampler, self._metric = sampler, metric
        self._num_decisions = 0
        self._bests: dict[int, float] = {}
        self._depths: dict[int, int] = {}
        self._added: set[int] = set()
        self._ended: set[int] = set()

    def take_in(self, decisions: Sequence[Decision]) -> int:
        """Report the new ones of a study's ``decisions``; return how many trials have ended since the last call."""
        new = decisions[self._num_decisions :]
        self._num_decisions = len(decisions)
        num_ended = 0
        for decision in new:
            trial_id = decision.trial_id
            if decision.kind is DecisionKind.ADD:
                self._added.add(trial_id)
            if trial_id in self._added:
                continue
            if decision.kind is DecisionKind.NEW_BEST:
                self._bests[trial_id] = decision.numbers[self._metric.name]
                continue
            # The depth of a value is the number of comparisons behind it; values are compared at equal depth.
            was_compared = decision.kind is DecisionKind.KEEP or decision.reason.is_comparison
            if was_compared or decision.kind is DecisionKind.FINISH:
                self._depths[trial_id] = self._depths.get(trial_id, 0) + 1
            is_end = decision.kind in (DecisionKind.STOP, DecisionKind.FINISH)
            # one that a person resumed ends twice, but had one proposal
            num_ended += is_end and trial_id not in self._ended
            if is_end:
                self._ended.add(trial_id)
            # At each comparison, not only at the end: the good trials end last, and a sampler would learn from the weak
            # ones alone until most of its budget is spent (measured: docs/early-exit-study.md).
            if is_end or decision.kind is DecisionKind.KEEP:
                self._sampler.tell(trial_id, self._bests.get(trial_id), depth=self._depths.get(trial_id, 0))
        return num_ended
