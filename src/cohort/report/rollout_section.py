"""What the report shows of trials that train on their own answers: their rewards by step, and answers to read."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from cohort.core.units import counted
from cohort.report.drawings.loss_curves import Curve, exponential_average, trial_panel
from cohort.report.drawings.svg import Axis, linear_axis
from cohort.runs.records import EvaluationRecord, StepRecord, TrialRecord

__all__ = ["SHOWN_NUMBERS", "RolloutSection", "rollout_section"]

SHOWN_NUMBERS = {
    "entropy": ("Entropy", "nats a token"),
    "answer_length": ("Length of answers", "tokens"),
    "kl": ("Distance from the base model", "KL, nats a token"),
    "clip_share": ("Clipped tokens", "share"),
    "groups_alike": ("Groups whose answers are all rewarded alike", "share"),
}
"""By number of a step, in the order of charts: the caption, and what the axis says."""
_WEIGHT = 0.2
# of each trial: its first answers and its last ones, and a few between
_MOST_ANSWERS = 6


@dataclass(frozen=True, kw_only=True)
class RolloutSection:
    """Drawings and texts.

    Attributes:
        train, validation: Rewards of the steps and of the evaluations.
        others: Caption and drawing of each further number.
        answers: By trial, what was answered: its number, and lines of step, prompt, answer and reward.
        note: The largest distance between the log-probabilities of sampler and training pass.
    """

    train: str
    validation: str
    others: tuple[tuple[str, str], ...]
    answers: tuple[Mapping[str, Any], ...]
    note: str


def rollout_section(
    trials: Sequence[TrialRecord],
    *,
    steps: Sequence[StepRecord],
    evaluations: Sequence[EvaluationRecord],
    best_id: int | None,
) -> RolloutSection | None:
    """Return what is shown; None of a run whose trials draw no answers."""
    if not any("reward" in step.metrics for step in steps):
        return None
    held_out: dict[int, list[tuple[int, float]]] = {}
    for record in evaluations:
        held_out.setdefault(record.trial_id, []).append((record.step, -record.validation_loss))
    panel = partial(trial_panel, trials=trials, best_id=best_id, axis=_whole_axis)
    others = []
    for name, (caption, unit) in SHOWN_NUMBERS.items():
        curves = _curves(steps, name)
        # a line at 0 shows nothing, such as the clipped share of one update a step
        if any(value for curve in curves.values() for _, value in curve):
            others.append((caption, panel(curves, y_label=unit, title=caption, name=name)))
    differences = [step.metrics.get("sampler_difference", 0.0) for step in steps]
    return RolloutSection(
        train=panel(_curves(steps, "reward"), y_label="reward", title="Reward", name="train"),
        validation=panel(held_out, y_label="reward", title="Held-out reward", name="validation"),
        others=tuple(others),
        answers=tuple(_answers(trial, steps) for trial in trials if trial.steps_done),
        note=f"Log-probabilities of sampler and training pass, on the same weights, differed by at most "
        f"{max(differences):.2g} nats in {counted(len(steps), 'step')}; the old ones are the training pass's own.",
    )


def _whole_axis(curves: Mapping[int, Curve]) -> Axis:
    """Return an axis over all that is drawn: no end of a reward is the uninteresting one."""
    finite = [value for curve in curves.values() for _, value in curve if math.isfinite(value)]
    low, high = min(finite, default=0.0), max(finite, default=1.0)
    margin = 0.04 * (high - low) or 0.5
    return linear_axis(low - margin, high + margin)


def _curves(steps: Sequence[StepRecord], name: str) -> dict[int, Curve]:
    found: dict[int, list[tuple[int, float]]] = {}
    for step in steps:
        if name in step.metrics:
            found.setdefault(step.trial_id, []).append((step.step, step.metrics[name]))
    return {trial_id: exponential_average(curve, weight=_WEIGHT) for trial_id, curve in found.items()}


def _answers(trial: TrialRecord, steps: Sequence[StepRecord]) -> dict[str, Any]:
    own = [step for step in steps if step.trial_id == trial.trial_id and step.answers]
    stride = max(1, math.ceil(len(own) / _MOST_ANSWERS))
    chosen = [step for place, step in enumerate(own) if place == len(own) - 1 or place % stride == 0]
    lines = [
        {"step": step.step, "prompt": answer.prompt, "text": answer.text, "reward": f"{answer.reward:g}"}
        for step in chosen
        for answer in step.answers
    ]
    return {"trial_id": trial.trial_id, "lines": lines}
