"""Collapse: a trial that is rewarded for its own answers, and can learn nothing from them any more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from cohort.core.events import StepDone
from cohort.tuning.decisions import DecisionKind, Reason
from cohort.tuning.early_exit.rule import Observation, Rule, Verdict

__all__ = ["ALIKE", "COLLAPSE_REASONS", "ENDLESS", "NO_ENTROPY", "UNREWARDED", "CollapseRule"]

ALIKE = Reason(
    "rewards alike",
    sentence="For many steps all answers to each prompt were rewarded alike, so that there was nothing to learn from.",
    colours=("#6b6b6b", "#a8a8a8"),
    shape="hexagon",
)
NO_ENTROPY = Reason(
    "entropy gone",
    sentence="For many steps the trial drew answers with no entropy left: it can find no other ones.",
    colours=("#8a5a2b", "#c99b6a"),
    shape="left",
)
ENDLESS = Reason(
    "answers endless",
    sentence="For many steps nearly no answer ended by itself, while at first most of them did.",
    colours=("#3f6f8f", "#86b3cf"),
    shape="right",
)
UNREWARDED = Reason(
    "rewards failing",
    sentence="For many steps reward functions failed for half of the answers or more.",
    colours=("#7a3b5e", "#b98aa5"),
    shape="pentagon",
)
# the first that holds is the reason: answers without a reward are alike as well
COLLAPSE_REASONS = (UNREWARDED, ALIKE, NO_ENTROPY, ENDLESS)

# a share of the planned steps, and the least number of them: a hard task begins with rewards of 0 alone
PATIENCE_SHARE, LEAST_PATIENCE = 0.15, 10
# nats a token; a model of two tokens to choose from has 0.69 at first
LEAST_ENTROPY = 1e-3
# shares of answers that were cut off
MOST_CUT, FEW_CUT = 0.95, 0.5
# of answers in groups that were left out because a function failed
MOST_ERRORS = 0.5


class CollapseRule(Rule):
    """Stops a trial after as many steps in a row as its patience says, with numbers of the last one.

    Patience is 15 % of the planned steps, at least 10. It counts steps with half of the answers or more left out, since
    reward functions failed; steps whose groups are all rewarded alike; steps with an entropy below 0.001 nats a token;
    and steps with at least 95 % of the answers cut off, of a trial whose first step had fewer than half of them cut off
    and whose reward has not risen since.
    """

    name = "collapse"

    def __init__(self) -> None:
        self._counts: dict[Reason, Counter[int]] = {reason: Counter() for reason in COLLAPSE_REASONS}
        self._first: dict[int, Mapping[str, float]] = {}

    def observe(self, observation: Observation) -> tuple[Verdict, ...]:
        event = observation.event
        if not isinstance(event, StepDone) or "reward" not in event.metrics:
            return ()
        trial_id, metrics = observation.trial_id, event.metrics
        first = self._first.setdefault(trial_id, metrics)
        patience = max(LEAST_PATIENCE, round(PATIENCE_SHARE * observation.candidate.planned_steps))
        now = {
            UNREWARDED: metrics.get("reward_errors", 0.0) >= MOST_ERRORS,
            ALIKE: metrics["groups_alike"] == 1.0,
            NO_ENTROPY: metrics["entropy"] < LEAST_ENTROPY,
            ENDLESS: metrics["cut_share"] >= MOST_CUT
            and first["cut_share"] < FEW_CUT
            and metrics["reward"] <= first["reward"],
        }
        for reason, holds in now.items():
            counts = self._counts[reason]
            counts[trial_id] = counts[trial_id] + 1 if holds else 0
        ended = next((reason for reason in COLLAPSE_REASONS if self._counts[reason][trial_id] >= patience), None)
        if ended is None:
            return ()
        shown = ("reward", "reward_std", "entropy", "answer_length", "cut_share")
        numbers = {name: metrics[name] for name in shown} | {"count": float(patience), "patience": float(patience)}
        return (Verdict(trial_id=trial_id, kind=DecisionKind.STOP, reason=ended, numbers=numbers),)
