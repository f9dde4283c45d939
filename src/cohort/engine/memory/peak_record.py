"""Predicted against observed peaks of all passes of a run, over every stop: how many, by how much, and the largest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cohort.core.memory_records import PassPeak
from cohort.runs.records import JsonValue

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
    largest: list[dict[str, JsonValue]] = field(default_factory=list)

    @classmethod
    def of(cls, facts: Mapping[str, JsonValue]) -> PeakRecord:
        """Return the record that an earlier process of the run left behind; an empty one where there was none."""
        count, error = facts.get("memory_passes_observed"), facts.get("memory_prediction_error_percent")
        shown = facts.get("memory_largest_passes")
        if not isinstance(count, int) or not isinstance(error, int | float) or not isinstance(shown, list):
            return cls()
        largest = [dict(entry) for entry in shown if isinstance(entry, dict)]
        return cls(num_passes=count, error_sum=count * error / 100, largest=largest)

    def add(self, peak: PassPeak, *, predicted: float) -> None:
        """Take in a pass and what was predicted before it was seen, in bytes."""
        self.num_passes += 1
        self.error_sum += abs(predicted - peak.num_bytes) / max(1, peak.num_bytes)
        entry: dict[str, JsonValue] = {
            "kind": peak.kind.value,
            "rows": peak.size.num_rows,
            "predicted_bytes": round(predicted),
            "observed_bytes": peak.num_bytes,
        }
        self.largest = sorted([*self.largest, entry], key=lambda shown: -int(str(shown["observed_bytes"])))
        del self.largest[_MOST_SHOWN:]

    def facts(self) -> dict[str, JsonValue]:
        """Return what the run record says of them; nothing where no pass was observed."""
        if not self.largest:
            return {}
        return {
            "memory_passes_observed": self.num_passes,
            "memory_prediction_error_percent": 100 * self.error_sum / self.num_passes,
            "memory_pass_predicted_bytes": self.largest[0]["predicted_bytes"],
            "memory_pass_observed_bytes": self.largest[0]["observed_bytes"],
            "memory_largest_passes": list(self.largest),
        }
