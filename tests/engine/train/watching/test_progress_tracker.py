"""What a watcher receives: counts, notes of ends, tokens a second and the time left, a few times a second."""

from __future__ import annotations

from pathlib import Path

import pytest

from cohort.core.clock import ManualClock
from cohort.core.events import Evaluated, StepDone, TrialEvent
from cohort.core.rank_work import RankWork
from cohort.engine.train.open_run import OpenRun
from cohort.engine.train.watching.progress import RankProgress
from cohort.engine.train.watching.progress_tracker import ProgressTracker
from cohort.prepare.trials import PlannedTrial
from cohort.runs.facts import Activity
from cohort.tuning.candidate import Candidate
from cohort.tuning.early_exit.settings import EarlyExitSettings
from cohort.tuning.study import Study
from cohort.tuning.trial_status import TrialStatus
from tests.engine.train.fakes import Notes, open_run, spec_of

STEPS = 10


def planned(trial_id: int) -> PlannedTrial:
    return PlannedTrial(
        configuration={"learning_rate": 1e-3},
        spec=spec_of(trial_id, num_steps=STEPS),
        candidate=Candidate(trial_id=trial_id, planned_steps=STEPS, warmup_steps=2, evaluation_steps=(2, STEPS)),
        planned_tokens=100 * STEPS,
    )


class Watched:
    """Two trials, trained by hand."""

    def __init__(self, path: Path) -> None:
        self.clock = ManualClock()
        trials = [planned(0), planned(1)]
        self.run: OpenRun = open_run(path, [trial.spec for trial in trials], clock=self.clock)
        self.study = Study([trial.candidate for trial in trials], EarlyExitSettings(rule="none"))
        self.tracker = ProgressTracker(self.run, study=self.study, trials=trials, kept_share=0.5)
        for trial_id in (0, 1):
            self.study.start(trial_id)

    @property
    def watcher(self) -> Notes:
        assert isinstance(self.run.watcher, Notes)
        return self.run.watcher

    def step(self, number: int, *, seconds: float = 1.0) -> None:
        events: list[TrialEvent] = [
            StepDone(trial_id=n, step=number, loss=2.0 - n, grad_norm=1.0, learning_rate=1e-3, num_tokens=100)
            for n in (0, 1)
        ]
        decisions = [decision for event in events for decision in self.study.observe(event)]
        if number in (2, STEPS):
            for n in (0, 1):
                found = Evaluated(trial_id=n, step=number, validation_loss=1.0 + n, num_tokens=50)
                events.append(found)
                decisions += self.study.observe(found)
        self.clock.advance(seconds)
        self.run.time_spent.add(Activity.TRAIN, seconds)
        self.tracker.took(events, decisions)


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path / "run")


def test_a_snapshot_says_where_each_trial_stands(watched: Watched) -> None:
    for number in (1, 2):
        watched.step(number)
    snapshot = watched.tracker.snapshot("training")
    assert [trial.steps_done for trial in snapshot.trials] == [2, 2]
    assert [trial.last_loss for trial in snapshot.trials] == [2.0, 1.0]
    assert snapshot.best is not None
    assert (snapshot.best.trial_id, snapshot.best.best_value) == (0, 1.0)
    assert snapshot.count(TrialStatus.RUNNING) == 2
    assert snapshot.tokens_done == 400
    assert snapshot.elapsed_seconds == pytest.approx(2.0)


def test_the_time_left_follows_the_steps_that_were_measured(watched: Watched) -> None:
    assert watched.tracker.snapshot("training").seconds_left is None
    # the first step compiles: it is not counted
    watched.step(1, seconds=20.0)
    for number in range(2, 6):
        watched.step(number)
    snapshot = watched.tracker.snapshot("training")
    assert snapshot.seconds_left == pytest.approx(5.0)
    assert snapshot.seconds_left_at_worst == pytest.approx(5.0)


def test_tokens_a_second_are_those_of_the_last_while(watched: Watched) -> None:
    for number in range(1, 4):
        watched.step(number, seconds=10.0)
    # the window holds 15 s: step 3 alone
    assert watched.tracker.snapshot("training").tokens_per_second == pytest.approx(200 / 10)


def test_snapshots_come_no_more_often_than_can_be_seen(watched: Watched) -> None:
    for number in range(1, 9):
        watched.step(number, seconds=0.1)
    assert [snapshot.phase for snapshot in watched.watcher.snapshots] == ["training"] * 3


def test_an_end_is_noted_in_words(watched: Watched) -> None:
    for number in range(1, STEPS + 1):
        watched.step(number)
    assert watched.watcher.notes == [f"trial {n} completed its {STEPS} steps" for n in (0, 1)]
    snapshot = watched.tracker.snapshot("writing the results")
    assert snapshot.count(TrialStatus.COMPLETED) == 2
    assert snapshot.seconds_left == 0


def test_trials_that_wait_for_room_step_later(watched: Watched) -> None:
    for number in range(1, 6):
        watched.step(number)
    before = watched.tracker.snapshot("training").seconds_left_at_worst
    late = planned(2)
    watched.study.add([late.candidate])
    watched.tracker.add([late])
    after = watched.tracker.snapshot("training")
    assert after.count(TrialStatus.WAITING) == 1
    # 10 steps of a third trial, of which two at a time fit: as many tokens a step as before
    assert before == pytest.approx(5.0)
    assert after.seconds_left_at_worst == pytest.approx(10.0)


def test_each_of_several_gpus_is_shown_with_its_trials_and_how_much_it_works(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    work = [RankWork(rank=0), RankWork(rank=1)]
    tracker = watched.tracker = ProgressTracker(
        watched.run,
        study=watched.study,
        trials=[planned(0), planned(1)],
        kept_share=0.5,
        work=lambda: list(work),
        trials_by_rank=lambda: {0: 2},
    )
    watched.step(1)
    work[:] = [RankWork(rank=0, train_seconds=0.5), RankWork(rank=1, evaluate_seconds=1.0)]
    watched.step(2)
    assert tracker.snapshot("training").ranks == (
        RankProgress(rank=0, num_trials=2, busy_share=0.5),
        RankProgress(rank=1, num_trials=0, busy_share=1.0),
    )
    # a step that began before the window counts where it ended
    work[0] = RankWork(rank=0, train_seconds=3.5)
    watched.step(3)
    assert [rank.busy_share for rank in tracker.snapshot("training").ranks] == [1.0, 0.5]
    assert ProgressTracker(watched.run, study=watched.study, trials=[], kept_share=0.5).snapshot("training").ranks == ()
