"""The peak of a pass, fitted to what was measured: one line for its forward and one for its backward half.

    M_hat(pass) = max(forward, backward)
    each = k0 + k1 rows + k2 rank entries + k3 trained rows + k4 logits + k5 sequences + k6 sum len^2

The highest point of a pass is either at the loss head, where one chunk of logits is held with all activations, or at
the beginning of the backward pass. Each is a sum of products of sizes, the maximum of both is not: so they are measured
and fitted apart. No coefficient is negative. Kernels that keep different things are regimes with lines of their own.

Source: ALTO A.3, ``M_hat = k0 + k1 tokens + k2 sum len^2`` by non-negative least squares. We differ: ragged attention
keeps nothing of len^2 (its coefficient comes out as zero), while ranks and the loss head show.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from cohort.core.memory_records import PassKind, PassPeak, PassSize

__all__ = [
    "TERMS",
    "PassModel",
    "PeakLine",
    "fit_passes",
    "largest_that_fits",
    "mean_error_percent",
    "nonnegative_least_squares",
]

TERMS = ("fixed", "num_rows", "rank_entries", "num_trained", "head_bytes", "num_sequences", "sum_squares")
"""What a line adds up: a constant and the sizes of :class:`~cohort.core.memory_records.PassSize`."""

# kind of pass, regime, whether layers were recomputed
_Key = tuple[PassKind, str, bool]
# A term is left out unless it improves the fit by this share of the residual: fewer terms predict better.
_WORTH = 1e-3
# measured passes that a fit remembers of each kind and regime; the newest
_MOST_SAMPLES = 96


def nonnegative_least_squares(design: NDArray[np.float64], target: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return x >= 0 that minimises ``|design x - target|``, with zeros for columns that do not help.

    By trying every set of columns, which is exact and quick for the few columns there are: the best x is the plain
    least-squares solution of some set, the one whose entries are all positive and whose residual is the least.
    """
    # Not scipy's nnls, which keeps every term that improves the fit at all: see _WORTH.
    num_columns = design.shape[1]
    best = np.zeros(num_columns)
    least = float(target @ target)
    floor = 1e-12 * least
    for count in range(1, min(num_columns, design.shape[0]) + 1):
        for columns in itertools.combinations(range(num_columns), count):
            chosen = list(columns)
            solution, *_ = np.linalg.lstsq(design[:, chosen], target, rcond=None)
            if solution.min() <= 0:
                continue
            off = design[:, chosen] @ solution - target
            residual = float(off @ off)
            if residual < least * (1 - _WORTH) - floor:
                least = residual
                best = np.zeros(num_columns)
                best[chosen] = solution
    return best


@dataclass(frozen=True, kw_only=True)
class PeakLine:
    """Bytes at the highest point of half a pass, as a sum over :data:`TERMS`; no coefficient is negative."""

    coefficients: tuple[float, ...]

    def predict(self, size: PassSize) -> float:
        return float(np.dot(self.coefficients, _features(size)))


@dataclass(frozen=True, kw_only=True)
class PassModel:
    """Predicts peaks beyond what is allocated before a pass. Immutable; :meth:`refitted` returns a better one.

    Attributes:
        lines: Forward and backward line by kind of pass, regime, and whether layers were recomputed.
        samples: What they were fitted to.
        correction: Factor on predictions, above 1 once a pass took more than was predicted or ran out of memory.
    """

    lines: Mapping[_Key, tuple[PeakLine, PeakLine]]
    samples: tuple[PassPeak, ...] = field(repr=False)
    correction: float = 1.0

    def predict(self, kind: PassKind, size: PassSize) -> float:
        """Return the peak bytes of a pass; of a regime that was never measured, the most of those that were.

        A recomputed pass takes less than one that is not: where none was measured it is predicted as the other.

        Raises:
            KeyError: no pass of this kind was measured.
        """
        lines = self.lines.get((kind, size.regime, size.recomputed))
        # A regime that was never measured is predicted by the most expensive one: too small a pass only costs time,
        # too large a one runs out of memory.
        known = [lines] if lines else self._lines_of(kind, recomputed=size.recomputed)
        known = known or self._lines_of(kind, recomputed=False)
        if not known:
            raise KeyError(f"no {kind} pass was measured")
        return self.correction * max(line.predict(size) for pair in known for line in pair)

    def knows(self, kind: PassKind, *, recomputed: bool = False) -> bool:
        """Return whether passes of ``kind`` were measured, ``recomputed`` or keeping their activations."""
        return bool(self._lines_of(kind, recomputed=recomputed))

    def _lines_of(self, kind: PassKind, *, recomputed: bool) -> list[tuple[PeakLine, PeakLine]]:
        return [lines for (of_kind, _, does), lines in self.lines.items() if (of_kind, does) == (kind, recomputed)]

    def error_percent(self, peaks: Iterable[PassPeak]) -> float:
        """Return the mean absolute error of predictions for measured passes, in percent; 0 for none."""
        return mean_error_percent([(self.predict(peak.kind, peak.size), peak.num_bytes) for peak in peaks])

    def refitted(self, peaks: Sequence[PassPeak]) -> PassModel:
        """Return a model that has also seen ``peaks``; it predicts none of them lower than it was."""
        newest: dict[_Key, list[PassPeak]] = {}
        for peak in (*self.samples, *peaks):
            newest.setdefault(_key(peak), []).append(peak)
        model = fit_passes([peak for kept in newest.values() for peak in kept[-_MOST_SAMPLES:]])
        # The fit minimises the mean error, so some passes took more than it says; none of those may be predicted lower.
        worst = max((peak.num_bytes / model.predict(peak.kind, peak.size) for peak in peaks), default=1.0)
        return PassModel(lines=model.lines, samples=model.samples, correction=max(self.correction, worst))

    def corrected(self, kind: PassKind, size: PassSize, *, at_least: float) -> PassModel:
        """Return a model that predicts ``at_least`` bytes for a pass that ran out of memory."""
        predicted = self.predict(kind, size)
        if predicted >= at_least:
            return self
        return PassModel(
            lines=self.lines, samples=self.samples, correction=self.correction * at_least / max(predicted, 1.0)
        )


def fit_passes(peaks: Sequence[PassPeak]) -> PassModel:
    """Fit a model to measured passes, by relative errors: small passes count as much as large ones."""
    groups: dict[_Key, list[PassPeak]] = {}
    for peak in peaks:
        groups.setdefault(_key(peak), []).append(peak)
    lines = {}
    for key, own in groups.items():
        # relative to the whole pass's peak: where half of a pass is far below the other its error costs nothing
        scale = np.array([max(1, peak.num_bytes) for peak in own], dtype=np.float64)
        sizes = [peak.size for peak in own]
        lines[key] = (
            _fit_line(sizes, np.array([peak.forward_bytes for peak in own], dtype=np.float64), scale),
            _fit_line(sizes, np.array([peak.backward_bytes for peak in own], dtype=np.float64), scale),
        )
    return PassModel(lines=lines, samples=tuple(peaks))


def _key(peak: PassPeak) -> _Key:
    return peak.kind, peak.size.regime, peak.size.recomputed


def mean_error_percent(pairs: Sequence[tuple[float, float]]) -> float:
    """Return the mean of ``|predicted / measured - 1|`` over (predicted, measured) in percent; 0 for none."""
    return 100 * sum(abs(predicted / measured - 1) for predicted, measured in pairs) / max(1, len(pairs))


def _features(size: PassSize) -> list[float]:
    return [1.0, *(float(getattr(size, term)) for term in TERMS[1:])]


def _fit_line(sizes: Sequence[PassSize], measured: NDArray[np.float64], scale: NDArray[np.float64]) -> PeakLine:
    design = np.array([_features(size) for size in sizes], dtype=np.float64) / scale[:, None]
    # columns differ by ten orders of magnitude; scaled to one, so that residuals mean the same to each
    widths = np.maximum(design.max(axis=0), 1e-300)
    solution = nonnegative_least_squares(design / widths, measured / scale) / widths
    return PeakLine(coefficients=tuple(float(value) for value in solution))


def largest_that_fits(fits: Callable[[int], bool], *, at_most: int) -> int:
    """Return the largest size in ``1 .. at_most`` for which ``fits`` holds, by binary search; 0 when none does.

    ``fits`` is asked about ``log2(at_most)`` sizes, smallest first until one fails.
    """
    # Doubling from below: a probe that answers by running out of memory does so as seldom as can be.
    low, high = 0, 1
    while high <= at_most and fits(high):
        low, high = high, high * 2
    high = min(high, at_most + 1)
    while high - low > 1:
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low
