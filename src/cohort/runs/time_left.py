"""How long a run will take from here: one formula for live progress, the plan of a queue and ``cohort status``.

The formula walks through the steps ahead, pack by pack; a :class:`Pace` says what a step takes. A process that trains
has measured its own steps (:class:`MeasuredPace`). A reader of the record has tokens a second (:class:`TokenRate`).
"""

from __future__ import annotations

import itertools
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

__all__ = ["MeasuredPace", "Pace", "TokenRate", "StepsAhead", "seconds_left"]

# on a GPU: steps of the first pack, and of later ones, that compile, allocate and record graphs
_SKIPPED_FIRST, _SKIPPED = 8, 2
# steps that make a median, on a GPU and on a CPU, and the most that are remembered
_LEAST, _LEAST_ON_CPU, _MOST = 5, 2, 32
# packs whose tokens differ by less tell nothing about the constant
_APART = 1.25


@dataclass(frozen=True, kw_only=True)
class StepsAhead:
    """The steps of a training that has not ended.

    Attributes:
        steps_done, planned_steps, warmup_steps: Optimizer steps; the selection is at the end of warm-up.
        tokens_per_step: Tokens it trains in one step.
        evaluation_steps: Steps it is evaluated after, where they are known.
    """

    steps_done: int
    planned_steps: int
    warmup_steps: int
    tokens_per_step: float
    evaluation_steps: tuple[int, ...] = ()

    @property
    def steps_left(self) -> tuple[int, int]:
        """Steps of its two stretches: until the end of warm-up, and after it."""
        done, warmup = self.steps_done, self.warmup_steps
        return max(0, warmup - done), max(0, self.planned_steps - max(done, warmup))

    @property
    def evaluations_left(self) -> tuple[int, int]:
        """Evaluations of its two stretches."""
        ahead = [step for step in self.evaluation_steps if step > self.steps_done]
        in_warmup = sum(step <= self.warmup_steps for step in ahead)
        return in_warmup, len(ahead) - in_warmup


class Pace(Protocol):
    """Says what steps and evaluations take."""

    def step_seconds(self, num_tokens: float) -> float | None:
        """Return the seconds of one step of a pack; None while too little is known."""
        ...

    def evaluation_seconds(self, num_trials: float) -> float:
        """Return the seconds of an evaluation of ``num_trials`` trials at once."""
        ...


def seconds_left(
    trials: Sequence[StepsAhead], *, pace: Pace, kept_share: float = 1.0, most_trials: int | None = None
) -> float | None:
    """Return the seconds that ``trials`` need; None while there is no pace.

    Args:
        trials: All trials that have not ended; they step together as far as ``most_trials`` lets them.
        pace: What steps and evaluations of the run take.
        kept_share: Share that goes on after warm-up, of those not judged yet; 1: no further trial exits.
        most_trials: Most trials that are resident at once, if others have to wait.
    """
    # while one trial is in warm-up, those that wait at its end are not judged yet
    is_open = any(trial.steps_done < trial.warmup_steps for trial in trials)
    total = 0.0
    for stretch in range(2):
        ahead = []
        for trial in trials:
            steps, evaluations = trial.steps_left[stretch], trial.evaluations_left[stretch]
            is_judged = trial.steps_done > trial.warmup_steps or not is_open
            if steps or evaluations:
                ahead.append((steps, evaluations, 1.0 if stretch == 0 or is_judged else kept_share, trial))
        if not ahead:
            continue
        members = sum(share for _, _, share, _ in ahead)
        crowd = 1.0 if most_trials is None else max(1.0, members / most_trials)
        # short trials leave first and the pack shrinks, so each pack is priced by the tokens of those still in it
        ahead.sort(key=lambda entry: entry[0])
        packs = list(itertools.accumulate(share * trial.tokens_per_step for _, _, share, trial in reversed(ahead)))
        done = 0
        for (steps, _, _, _), pack in zip(ahead, reversed(packs), strict=True):
            each = pace.step_seconds(pack / crowd)
            if each is None:
                return None
            total += (steps - done) * crowd * each
            done = steps
        evaluations_ahead = sum(share * evaluations for _, evaluations, share, _ in ahead)
        total += evaluations_ahead / members * crowd * pace.evaluation_seconds(members / crowd)
    return total


@dataclass(frozen=True)
class TokenRate:
    """A pace in proportion to tokens: all that a record tells, and all that is known before packs were measured.

    On a GPU it overrates what exits save: a step of two trials may take as long as one of eight.

    Attributes:
        tokens_per_second: Trained and evaluated, lately; None where nothing was.
        evaluated_per_trained: Tokens evaluated for each one trained so far. Evaluations to come are expected to keep
            this ratio, though they are denser within warm-up.
    """

    tokens_per_second: float | None
    evaluated_per_trained: float

    @classmethod
    def of(cls, tokens_per_second: float | None, *, trained: int, evaluated: int) -> TokenRate:
        """Return the rate of a run that has trained and evaluated this many tokens."""
        return cls(tokens_per_second, evaluated / trained if trained else 0.0)

    def step_seconds(self, num_tokens: float) -> float | None:
        if not self.tokens_per_second:
            return None
        return num_tokens * (1 + self.evaluated_per_trained) / self.tokens_per_second

    def evaluation_seconds(self, num_trials: float) -> float:  # noqa: ARG002 - the steps hold it
        return 0.0


class MeasuredPace:
    """What steps and evaluations of one run took.

    A step takes a constant and a part that grows with its tokens; on a GPU small steps take the constant alone. So the
    time that exits save is not in proportion to their tokens: a rate of tokens once said 1m 43s where 17 s were left.
    Both parts are fitted to what packs of different sizes took. Until there is a second pack, the first one's time is
    scaled by its tokens, but not below what a GPU does in one go.
    """

    def __init__(self, *, flat_tokens: float) -> None:
        """Start without a measurement.

        Args:
            flat_tokens: Steps of fewer tokens take as long as one of this many; 0 on a CPU.
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
        self._steps.add(num_trials, tokens=num_tokens, seconds=seconds)

    def took_evaluation(self, num_trials: int, *, num_tokens: int, seconds: float) -> None:
        self._tokens += num_tokens
        self._num_evaluated += num_trials
        self._evaluations.add(num_trials, tokens=num_tokens, seconds=seconds)

    def step_seconds(self, num_tokens: float) -> float | None:
        return self._steps.seconds(num_tokens)

    def evaluation_seconds(self, num_trials: float) -> float:
        if not self._num_evaluated:
            return 0.0
        return self._evaluations.seconds(num_trials * self._tokens / self._num_evaluated) or 0.0


class _Curve:
    """Seconds by tokens, from medians of what packs of each size took."""

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
        """Return what one of ``tokens`` takes; None while too little was seen."""
        if self._latest is None:
            return None
        # a prediction needs this once for every trial: fitting each time would sort 32 samples of every pack size
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
        # the pack that trains now is met exactly: the fit of all packs leaves a residual
        scale = y0 / (constant + slope * x0)
        return scale * constant, scale * slope, 0.0


def _median(group: Sequence[tuple[float, float]]) -> tuple[float, float]:
    return statistics.median(x for x, _ in group), statistics.median(y for _, y in group)


def _line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the constant and slope of the least relative squares; neither is negative."""
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
