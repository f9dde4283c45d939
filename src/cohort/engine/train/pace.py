"""How long a run will take from here, by what its steps and evaluations have taken: for the plan of a queue.

A step takes a constant and a part that grows with its tokens; on a GPU small steps take the constant alone. So the time
that exits save is not in proportion to their tokens. Both parts are fitted to what packs of different sizes took;
until there was a second one, the first one's time is scaled by its tokens, but not below what a GPU does in one go.
"""

from __future__ import annotations

import itertools
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Pace", "TrialLeft", "seconds_at_pace"]

# on a GPU: steps of the first pack, and of later ones, that compile, allocate and record graphs
_SKIPPED_FIRST, _SKIPPED = 8, 2
# steps that make a median, on a GPU and on a CPU, and the most that are remembered
_LEAST, _LEAST_ON_CPU, _MOST = 5, 2, 32
# packs whose tokens differ by less tell nothing about the constant
_APART = 1.25


@dataclass(frozen=True, kw_only=True)
class TrialLeft:
    """What a trial that has not ended has before it, in two stretches: until the end of its warm-up, and after it.

    Attributes:
        steps, evaluations: Of each stretch.
        tokens_per_step: Trained.
        is_judged: Whether the selection at the end of warm-up is behind it.
    """

    steps: tuple[int, int]
    evaluations: tuple[int, int]
    tokens_per_step: float
    is_judged: bool


class _Curve:
    """Seconds of something by its tokens, from medians of what packs of each size took."""

    def __init__(self, *, flat_tokens: float, skipped_first: int, skipped: int, least: int) -> None:
        self._flat, self._least = flat_tokens, least
        self._skipped_first, self._skipped = skipped_first, skipped
        self._groups: dict[int, deque[tuple[float, float]]] = {}
        self._counts: dict[int, int] = {}
        self._latest: int | None = None
        self._fitted: tuple[float, float, float] | None = None

    def add(self, size: int, *, tokens: float, seconds: float) -> None:
        """Take in one of a pack of ``size`` trials."""
        skipped = self._skipped if self._groups or self._latest is not None else self._skipped_first
        count = self._counts[size] = self._counts.get(size, 0) + 1
        if count <= skipped or seconds <= 0 or tokens <= 0:
            return
        group = self._groups.setdefault(size, deque(maxlen=_MOST))
        group.append((tokens, seconds))
        self._fitted = None
        if len(group) >= self._least:
            self._latest = size

    def seconds(self, tokens: float) -> float | None:
        """Return what one of so many tokens takes; None while too little was seen."""
        if self._latest is None:
            return None
        # a prediction asks for every trial, which 32 samples of every pack size are not sorted for each time
        if self._fitted is None:
            self._fitted = self._fit(self._latest)
        constant, slope, flat = self._fitted
        return constant + slope * max(tokens, flat)

    def _fit(self, latest: int) -> tuple[float, float, float]:
        """Return constant, slope, and the tokens below which nothing becomes shorter."""
        points = {size: _median(group) for size, group in self._groups.items() if len(group) >= self._least}
        x0, y0 = points[latest]
        least, most = min(x for x, _ in points.values()), max(x for x, _ in points.values())
        if most < _APART * least:
            return 0.0, y0 / max(x0, self._flat), self._flat
        constant, slope = _line(list(points.values()))
        scale = y0 / (constant + slope * x0)
        return scale * constant, scale * slope, 0.0


def _median(group: Sequence[tuple[float, float]]) -> tuple[float, float]:
    return statistics.median(x for x, _ in group), statistics.median(y for _, y in group)


def _line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return constant and slope, none of them negative, of the least relative squares."""
    ones = [1 / y for _, y in points]
    slopes = [x / y for x, y in points]
    aa, bb = sum(v * v for v in ones), sum(v * v for v in slopes)
    ab, ay, by = sum(u * v for u, v in zip(ones, slopes, strict=True)), sum(ones), sum(slopes)
    determinant = aa * bb - ab * ab
    if determinant > 1e-12 * aa * bb:
        constant, slope = (ay * bb - by * ab) / determinant, (by * aa - ay * ab) / determinant
        if constant >= 0 and slope >= 0:
            return constant, slope
        if slope < 0:
            return ay / aa, 0.0
    return 0.0, by / bb


class Pace:
    """What the steps and evaluations of one run take."""

    def __init__(self, *, flat_tokens: float) -> None:
        """Begin without any.

        Args:
            flat_tokens: Steps of fewer tokens take as long as one of so many; 0 on a CPU.
        """
        on_gpu = flat_tokens > 0
        self._steps = _Curve(
            flat_tokens=flat_tokens,
            skipped_first=_SKIPPED_FIRST if on_gpu else 1,
            skipped=_SKIPPED if on_gpu else 0,
            least=_LEAST if on_gpu else _LEAST_ON_CPU,
        )
        self._evaluations = _Curve(flat_tokens=flat_tokens, skipped_first=1 if on_gpu else 0, skipped=0, least=1)
        self._tokens = self._num_evaluated = 0

    def took_step(self, num_trials: int, *, num_tokens: int, seconds: float) -> None:
        """Take in a step of ``num_trials`` trials."""
        self._steps.add(num_trials, tokens=num_tokens, seconds=seconds)

    def took_evaluation(self, num_trials: int, *, num_tokens: int, seconds: float) -> None:
        """Take in an evaluation of ``num_trials`` trials at once."""
        self._tokens += num_tokens
        self._num_evaluated += num_trials
        self._evaluations.add(num_trials, tokens=num_tokens, seconds=seconds)

    def step_seconds(self, num_tokens: float) -> float | None:
        """Return the seconds of a step; None while too few were seen."""
        return self._steps.seconds(num_tokens)

    def evaluation_seconds(self, num_trials: float) -> float:
        """Return the seconds of an evaluation of ``num_trials`` trials; 0 before the first."""
        if not self._num_evaluated:
            return 0.0
        return self._evaluations.seconds(num_trials * self._tokens / self._num_evaluated) or 0.0


def seconds_at_pace(
    trials: Sequence[TrialLeft], *, pace: Pace, kept_share: float = 1.0, most_trials: int | None = None
) -> float | None:
    """Return the seconds that ``trials`` need; None while there is no pace.

    Args:
        trials: All that have not ended; they step together as far as ``most_trials`` lets them.
        pace: Of the run so far.
        kept_share: Share that goes on after warm-up, of those not judged yet; 1: no further trial exits.
        most_trials: That are resident at once where others have to wait.
    """
    total = 0.0
    for stretch in range(2):
        ahead = [
            (trial.steps[stretch], trial, 1.0 if stretch == 0 or trial.is_judged else kept_share)
            for trial in trials
            if trial.steps[stretch] or trial.evaluations[stretch]
        ]
        if not ahead:
            continue
        members = sum(share for _, _, share in ahead)
        crowd = 1.0 if most_trials is None else max(1.0, members / most_trials)
        done = 0
        ahead.sort(key=lambda entry: entry[0])
        # tokens a step of each trial and those that go on longer
        packs = list(itertools.accumulate(share * trial.tokens_per_step for _, trial, share in reversed(ahead)))
        for (steps, _, _), pack in zip(ahead, reversed(packs), strict=True):
            each = pace.step_seconds(pack / crowd)
            if each is None:
                return None
            total += (steps - done) * crowd * each
            done = steps
        evaluations = sum(share * trial.evaluations[stretch] for _, trial, share in ahead)
        total += evaluations / members * crowd * pace.evaluation_seconds(members / crowd)
    return total
