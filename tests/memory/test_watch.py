"""Every pass of a run counts in what is said of the predictions, however many there were and wherever it stopped."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from cohort.core.memory_records import ObservedPass, PassKind, PassPeak, PassSize
from cohort.memory.watch import PeakRecord
from cohort.runs.fact_groups import PassFacts
from cohort.runs.facts import RunFacts, stored_facts


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
    assert facts.num_observed == 5_000
    assert facts.error_percent == pytest.approx(49.5)
    assert facts.largest is not None
    assert len(facts.largest) == 20
    assert facts.observed_bytes == 1_004_900
    assert facts.largest[0] == ObservedPass(
        kind=PassKind.TRAIN, rows=1_004_900, predicted_bytes=1_004_900, observed_bytes=1_004_900
    )


def test_a_stop_changes_nothing() -> None:
    rows = stored_facts({"passes": taken(700).facts()})
    before = RunFacts.from_stored({key: json.loads(text) for key, text in rows.items() if text is not None}).passes
    after = taken(800, first=700, record=PeakRecord.of(before)).facts()
    whole = taken(1_500).facts()
    assert after.error_percent == pytest.approx(whole.error_percent)
    assert replace(after, error_percent=0.0) == replace(whole, error_percent=0.0)


def test_nothing_observed_says_nothing() -> None:
    assert PeakRecord.of(PassFacts()).facts() == PassFacts()
