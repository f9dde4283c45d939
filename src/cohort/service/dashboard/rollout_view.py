"""What pages show of trials that train on their own answers: numbers by step, of the last step, and answers to read."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from cohort.report.rollout_section import SHOWN_NUMBERS
from cohort.runs.reader import RunReader
from cohort.service.dashboard.curve_points import stride_of
from cohort.service.dashboard.plain_json import rounded

__all__ = ["answer_views", "rollout_curves"]

_CHARTS = {"reward": ("Reward of the answers trained on", "reward"), **SHOWN_NUMBERS}
# of each trial: its first step, its last one, and some between
_MOST_ANSWERED_STEPS = 8


def rollout_curves(reader: RunReader, *, trials: Sequence[int] | None = None) -> dict[str, Any]:
    """Return the numbers of every n-th step, and those of the last step of each trial.

    Returns:
        ``charts``, each with ``name``, ``caption``, ``unit`` and ``curves`` as ``[steps], [values]`` by trial, without
        those that are 0 everywhere; ``latest``, by trial; ``stride`` n. No chart where trials draw no answers.
    """
    latest = reader.step_numbers.latest()
    plans = reader.planned_steps() if latest else {}
    last = max(plans.values(), default=0)
    num_trials = len(plans if trials is None else trials)
    # as many points as other charts have together
    stride = stride_of(last, num_trials=num_trials * len(_CHARTS))
    steps = sorted({1, *range(stride, last + 1, stride)}) if latest else []
    curves: dict[str, dict[int, list[tuple[int, float]]]] = defaultdict(lambda: defaultdict(list))
    for trial_id, step, numbers in reader.step_numbers.at(steps, trials=trials):
        for name in _CHARTS:
            if name in numbers:
                curves[name][trial_id].append((step, numbers[name]))
    charts = [
        {
            "name": name,
            "caption": caption,
            "unit": unit,
            "curves": {
                str(trial_id): [[step for step, _ in points], [rounded(value, 5) for _, value in points]]
                for trial_id, points in curves[name].items()
            },
        }
        for name, (caption, unit) in _CHARTS.items()
        # a line at 0 shows nothing, such as the clipped share of one update a step
        if name == "reward" or any(value for points in curves[name].values() for _, value in points)
    ]
    return {
        "charts": charts if latest else [],
        "latest": {
            str(trial_id): {name: rounded(numbers[name], 5) for name in _CHARTS if name in numbers}
            for trial_id, numbers in latest.items()
        },
        "stride": stride,
    }


def answer_views(reader: RunReader, trial_id: int) -> list[dict[str, Any]]:
    """Return answers of a trial to read, from its first step to its last."""
    return [
        {
            "step": step,
            "prompt": answer.prompt,
            "text": answer.text,
            "reward": rounded(answer.reward) if math.isfinite(answer.reward) else None,
        }
        for step, answers in reader.step_numbers.answers(trial_id, most=_MOST_ANSWERED_STEPS)
        for answer in answers
    ]
