"""Which trial was in which slot when: a bar for each stay, a mark where the trial ended in it."""

from __future__ import annotations

import re

from cohort.report.drawings.slot_timeline import slot_timeline
from tests.runs.small_run import SmallRun


def drawn(run: SmallRun, *, run_seconds: float) -> str:
    reader = run[1].reader
    return slot_timeline(reader.log.residencies(), trials=reader.trials(), run_seconds=run_seconds, best_id=0)


def test_a_run_without_a_stay_has_no_timeline(run: SmallRun) -> None:
    assert drawn(run, run_seconds=0.0) == ""


def test_a_stay_is_a_bar_that_says_how_it_ended(run: SmallRun) -> None:
    _, store, clock = run
    began = store.seconds
    store.trial_entered(0, slot=1)
    store.trial_entered(3, slot=0)
    clock.advance(100)
    store.trial_left(0)
    drawing = drawn(run, run_seconds=began + 100)
    titles = re.findall(r"<title>(trial [^<]+)</title>", drawing)
    assert [title.rpartition(": ")[2] for title in titles] == ["completed", "still here"]
    assert titles[0].startswith("trial 0 in row 1, ")
    assert 'class="trial o-completed best" data-trial="0"' in drawing
    # the first slot is the upper row
    first, second = (float(y) for y in re.findall(r'<rect x="[\d.]+" y="([\d.]+)"', drawing))
    assert second < first


def test_a_short_stay_has_its_number_and_its_mark(run: SmallRun) -> None:
    _, store, clock = run
    store.trial_entered(2, slot=0)
    clock.advance(2)
    store.trial_left(2)
    clock.advance(95)
    drawing = drawn(run, run_seconds=store.seconds)
    (group,) = re.findall(r'<g class="trial [^"]*" data-trial="2">.*?</g>', drawing)
    assert 'class="stay-label"' in group
    assert "scale(0.7)" in group
