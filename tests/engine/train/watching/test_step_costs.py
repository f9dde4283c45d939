"""What a run leaves for the next plan: means of undisturbed steps by pack, evaluation, start and end."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cohort.core.clock import ManualClock
from cohort.core.events import Evaluated, StepDone, TrialFailed
from cohort.engine.train.open_run import OpenRun
from cohort.engine.train.watching import step_costs
from cohort.engine.train.watching.step_costs import DISTURBED, MOST_STEPS, SKIPPED_STEPS, StepRecorder
from cohort.machine.measurements import RunCosts
from cohort.runs.facts import Activity
from tests.engine.train.fakes import open_run, spec_of

SPECS = {0: spec_of(0, batch_size=2), 1: spec_of(1, batch_size=1)}
READING = {Activity.TOKENISE: 3.0, Activity.LOAD: 4.0}


class Recording:
    """A recorder whose steps are given by hand."""

    def __init__(self, path: Path) -> None:
        self.clock = ManualClock()
        self.run: OpenRun = open_run(path, list(SPECS.values()), clock=self.clock)
        preparation: Any = SimpleNamespace(
            inputs=SimpleNamespace(data=SimpleNamespace(train=SimpleNamespace(lengths=np.array([10, 30])))),
            facts=SimpleNamespace(seconds=READING),
        )
        self.recorder = StepRecorder(preparation, self.run, specs=SPECS)

    def step(self, *trial_ids: int, seconds: float = 1.0, tokens: int = 20, failed: int | None = None) -> None:
        self.clock.advance(seconds)
        self.run.time_spent.add(Activity.TRAIN, seconds)
        events: list[Any] = [
            StepDone(trial_id=n, step=1, loss=1.0, grad_norm=1.0, learning_rate=1e-3, num_tokens=tokens)
            for n in trial_ids
        ]
        if failed is not None:
            events.append(TrialFailed(trial_id=failed, step=1, message="bad"))
        self.recorder.took(events)


@pytest.fixture
def recording(tmp_path: Path) -> Recording:
    return Recording(tmp_path / "run")


def test_nothing_is_known_before_the_first_step(recording: Recording) -> None:
    assert recording.recorder.costs() == RunCosts()


def test_the_first_steps_of_a_pack_and_disturbed_ones_do_not_count(recording: Recording) -> None:
    for _ in range(SKIPPED_STEPS):
        recording.step(0, 1, seconds=50.0)
    for _ in range(5):
        recording.step(0, 1)
    recording.step(0, 1, seconds=DISTURBED + 0.5)
    (sample,) = recording.recorder.costs().samples
    assert sample.seconds == pytest.approx(1.0)
    assert sorted((work.num_sequences, work.num_tokens) for work in sample.pack) == [(1, 20), (2, 20)]
    # rows of 10 and 30 tokens: (100 + 900) / (10 + 30) squares for each token
    assert {work.sum_squares for work in sample.pack} == {20 * 25.0}


def test_packs_are_kept_apart_and_bounded(recording: Recording) -> None:
    for _ in range(SKIPPED_STEPS + MOST_STEPS + 20):
        recording.step(0)
    for _ in range(SKIPPED_STEPS + 3):
        recording.step(0, 1, seconds=2.0)
    one, both = recording.recorder.costs().samples
    assert (len(one.pack), len(both.pack)) == (1, 2)
    assert (one.seconds, both.seconds) == pytest.approx((1.0, 2.0))


def test_a_step_in_which_a_trial_failed_does_not_count(recording: Recording) -> None:
    for _ in range(SKIPPED_STEPS + 5):
        recording.step(0, failed=1)
    assert recording.recorder.costs().samples == ()


def test_the_rest_of_the_run_is_told_apart(recording: Recording) -> None:
    recording.step(0, seconds=10.0)
    recording.step(0)
    with recording.run.time_spent.on(Activity.EVALUATE):
        recording.clock.advance(5.0)
    recording.recorder.took([Evaluated(trial_id=0, step=2, validation_loss=1.0, num_tokens=70)])
    recording.clock.advance(0.5)
    recording.step(0)
    recording.clock.advance(2.0)
    costs = recording.recorder.costs()
    # the first step compiles, so that its time belongs to the start, after reading and loading
    assert costs.start_seconds == pytest.approx(sum(READING.values()) + 10.0)
    assert costs.evaluated_tokens == 70
    assert costs.evaluation_seconds == pytest.approx(5.0)
    assert costs.other_seconds == pytest.approx(0.5)
    assert costs.finish_seconds == pytest.approx(2.0)
    assert costs.steps == 3


def test_a_run_without_a_whole_sample_leaves_nothing(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[Any] = []
    monkeypatch.setattr(step_costs, "write_costs", lambda *found: written.append(found))
    recording.step(0)
    recording.recorder.keep()
    assert written == []
