"""Every pass of a run counts in what is said of the predictions, however many there were and wherever it stopped."""

from __future__ import annotations

import json

import pytest

from cohort.core.memory_records import PassKind, PassPeak, PassSize
from cohort.engine.memory.peak_record import PeakRecord


def peak(num_bytes: int) -> PassPeak:
    size = PassSize(num_rows=num_bytes, num_trained=0, rank_entries=0, head_bytes=0, num_sequences=1, sum_squares=0)
    return PassPeak(kind=PassKind.TRAIN, size=size, forward_bytes=num_bytes, backward_bytes=0)


def taken(count: int, *, first: int = 0, record: PeakRecord | None = None) -> PeakRecord:
    """Small passes are predicted 50 % too high, the few large ones exactly."""
    record = record or PeakRecord()
    for index in range(first, first + count):
        is_large = index % 100 == 0
        num_bytes = 1_000_000 + index if is_large else 1_000
        record.add(peak(num_bytes), predicted=num_bytes * (1.0 if is_large else 1.5))
    return record


def test_the_error_is_that_of_all_passes_not_of_the_largest() -> None:
    facts = taken(5_000).facts()
    assert facts["memory_passes_observed"] == 5_000
    assert facts["memory_prediction_error_percent"] == pytest.approx(49.5)
    shown = facts["memory_largest_passes"]
    assert isinstance(shown, list)
    assert len(shown) == 20
    assert facts["memory_pass_observed_bytes"] == 1_004_900
    assert shown[0] == {
        "kind": "training",
        "rows": 1_004_900,
        "predicted_bytes": 1_004_900,
        "observed_bytes": 1_004_900,
    }


def test_a_stop_changes_nothing() -> None:
    before = json.loads(json.dumps(taken(700).facts()))
    after = taken(800, first=700, record=PeakRecord.of(before)).facts()
    whole = taken(1_500).facts()
    assert after["memory_prediction_error_percent"] == pytest.approx(whole["memory_prediction_error_percent"])
    assert {**after, "memory_prediction_error_percent": 0} == {**whole, "memory_prediction_error_percent": 0}


def test_nothing_observed_says_nothing() -> None:
    assert PeakRecord.of({}).facts() == {}
