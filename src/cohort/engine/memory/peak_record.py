"""Predicted against observed peaks of all passes of a run, over every stop: how many, by how much, and the largest."""

from __future__ import annotations

from dataclasses import dataclass, field

from cohort.core.memory_records import PassPeak
from cohort.runs.facts import ObservedPass, PassFacts

__all__ = ["PeakRecord"]

_MOST_SHOWN = 20


@dataclass(kw_only=True)
class PeakRecord:
    """Grows by one pass at a time, and takes as much room after a million as after twenty.

    Attributes:
        num_passes: Passes whose peak was observed.
        error_sum: Of their prediction errors, each as a share of what was observed.
        largest: The passes that took most, largest first, as the run record shows them.
    """

    num_passes: int = 0
    error_sum: float = 0.0
    largest: list[ObservedPass] = field(default_factory=list)

    @classmethod
    def of(cls, facts: PassFacts) -> PeakRecord:
        """Return the record that an earlier process of the run left behind; an empty one where there was none."""
        count, error = facts.num_observed, facts.error_percent
        if count is None or error is None:
            return cls()
        return cls(num_passes=count, error_sum=count * error / 100, largest=list(facts.largest or ()))

    def add(self, peak: PassPeak, *, predicted: float) -> None:
        """Take in a pass and what was predicted before it was seen, in bytes."""
        self.num_passes += 1
        self.error_sum += abs(predicted - peak.num_bytes) / max(1, peak.num_bytes)
        entry = ObservedPass(
            kind=peak.kind, rows=peak.size.num_rows, predicted_bytes=round(predicted), observed_bytes=peak.num_bytes
        )
        self.largest = sorted([*self.largest, entry], key=lambda shown: -shown.observed_bytes)
        del self.largest[_MOST_SHOWN:]

    def facts(self) -> PassFacts:
        """Return what the run record says of them; nothing where no pass was observed."""
        if not self.largest:
            return PassFacts()
        return PassFacts(
            num_observed=self.num_passes,
            error_percent=100 * self.error_sum / self.num_passes,
            predicted_bytes=self.largest[0].predicted_bytes,
            observed_bytes=self.largest[0].observed_bytes,
            largest=tuple(self.largest),
        )
