"""Status: who runs it, how fast, and how long it will take."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from cohort.core.events import Evaluated, StepDone
from cohort.core.rank_work import RankWork
from cohort.core.statistics.estimates import Estimate
from cohort.runs.fact_groups import MachineFacts, SizeFacts, TaskFacts
from cohort.runs.facts import RunState
from cohort.runs.results.comparison import Comparison, Contender
from cohort.runs.schema import EARLIER_VERSION, STEP_COLUMNS
from cohort.runs.status import RankStatus, RunStatus, read_status
from cohort.tuning.decisions import Decision, DecisionKind, Reason
from cohort.tuning.trial_status import TrialStatus
from tests.runs.small_run import SmallRun


def test_status_says_who_runs_it_and_how_fast(run: SmallRun) -> None:
    directory, store, clock = run
    store.trial_entered(3, slot=1)
    with directory.lock():
        status = read_status(directory)
    assert status.state == "running"
    assert status.holder.startswith("process ")
    assert status.counts[TrialStatus.RUNNING] == 1
    assert status.counts[TrialStatus.PARKED] == 0
    assert status.resident == ((1, 3),)
    assert status.stopped_reasons == {"underperforming": 1, "non-finite": 1}
    # run time is 10 s, and what was logged at second 0 lies outside the open window
    assert status.tokens_per_second == pytest.approx((100 + 50 + 50) / 10)
    # trial 3 has four steps of 100 tokens left, and 150/550 as many tokens to evaluate
    assert status.seconds_left == pytest.approx(4 * 100 * (1 + 150 / 550) / 20)
    # of which one that is evaluated costs half of one that is trained
    assert status.cost_tokens_left == pytest.approx(4 * 100 * (1 + 0.5 * 150 / 550))
    assert status.num_devices == 1
    # with a warm-up of one step and a quarter kept, three quarters of its other steps are not expected
    store.set_facts(task=TaskFacts(warmup_fraction=0.25, kept_share=0.25))
    assert read_status(directory).seconds_left == pytest.approx((1 + 0.25 * 3) * 100 * (1 + 150 / 550) / 20)
    left = read_status(directory)
    assert left.cost_tokens_left == pytest.approx((1 + 0.25 * 3) * 100 * (1 + 0.5 * 150 / 550))
    assert left.state == "stopped"
    store.set_facts(state=RunState.DONE)
    done = read_status(directory)
    assert (done.state, done.seconds_left, done.cost_tokens_left) == ("done", 0.0, 0.0)
    assert clock.monotonic() == 10


def test_status_says_what_each_of_several_gpus_did_in_the_last_minute(run: SmallRun) -> None:
    directory, store, _ = run
    assert read_status(directory).ranks == ()
    store.set_facts(sizes=SizeFacts(num_slots=2, num_ranks=2), machine=MachineFacts(device="cuda (a GPU)"))
    store.trial_entered(3, slot=2)
    store.add_rank_work(
        [
            RankWork(rank=0, train_seconds=3.0, evaluate_seconds=1.0, num_tokens=200),
            RankWork(rank=1, train_seconds=1.0),
        ],
        start_seconds=2.0,
        end_seconds=10.0,
    )
    status = read_status(directory)
    assert (status.device, status.num_devices) == ("GPU", 2)
    # the first slot of rank 1 follows the last of rank 0
    assert status.ranks == (
        RankStatus(rank=0, trials=(), busy_share=0.5, tokens_per_second=25.0),
        RankStatus(rank=1, trials=(3,), busy_share=0.125, tokens_per_second=0.0),
    )
    store.set_facts(sizes=SizeFacts(num_slots=2, num_ranks=2, rank_group="pipeline"))
    assert [rank.trials for rank in read_status(directory).ranks] == [None, None]
    # the last stretch of a long run may have ended more than a minute ago
    store.set_facts(run_seconds=1000.0)
    assert [rank.busy_share for rank in read_status(directory).ranks] == [0.5, 0.125]


def test_work_that_began_before_its_stretch_keeps_no_gpu_busier_than_all_of_the_time(run: SmallRun) -> None:
    directory, store, _ = run
    store.set_facts(sizes=SizeFacts(num_slots=2, num_ranks=1), machine=MachineFacts(device="cuda (a GPU)"))
    work = [RankWork(rank=0, train_seconds=7.5, evaluate_seconds=1.5, num_tokens=90)]
    store.add_rank_work(work, start_seconds=4.0, end_seconds=10.0)
    (rank,) = read_status(directory).ranks
    assert (rank.busy_share, rank.tokens_per_second) == (1.0, 15.0)


def test_a_killed_run_is_shown_as_a_resume_will_find_it(run: SmallRun) -> None:
    directory, store, clock = run
    store.trial_entered(3, slot=1)
    store.append([_step(3, 1), _evaluated(3, 1)])
    store.record_checkpoint("checkpoint-1", checksum="aa")
    at_checkpoint = read_status(directory)
    assert at_checkpoint.steps_to_repeat == 0
    clock.advance(5)
    stop = Decision(trial_id=3, step=3, kind=DecisionKind.STOP, reason=Reason("underperforming"), rule="median")
    store.append([_step(3, 2), _step(3, 3), _evaluated(3, 3)], [stop])
    store.trial_left(3)
    store.trial_entered(2, slot=1)
    with directory.lock():
        running = read_status(directory)
        assert (running.steps_to_repeat, _steps_of(running, 3)) == (0, 3)
    killed = read_status(directory)
    assert (killed.steps_to_repeat, _steps_of(killed, 3)) == (2, 1)
    assert killed.counts == {**at_checkpoint.counts, TrialStatus.PARKED: 1, TrialStatus.RUNNING: 0}
    assert killed.results.run_seconds == 15
    assert killed.stopped_reasons == at_checkpoint.stopped_reasons
    assert (killed.results.compute, killed.resident) == (at_checkpoint.results.compute, ())
    # what a resume keeps is what was shown
    store.truncate_after(store.reader.checkpoints()[-1].position)
    assert read_status(directory).trials == killed.trials


@pytest.mark.parametrize("is_ended_later", [True, False])
def test_what_a_killed_run_concluded_from_later_steps_is_not_shown(run: SmallRun, is_ended_later: bool) -> None:
    directory, store, _ = run
    store.record_checkpoint("checkpoint-1", checksum="aa")
    at_checkpoint = read_status(directory).results
    position = store.append([_step(3, 1), _evaluated(3, 1)])
    winner = Contender(trial_id=3, step=1, values={"loss": Estimate(value=1.0, low=1.0, high=1.0, num_rows=4)})
    comparison = Comparison(num_rows=4, num_available=4, num_tokens=40, ranked=(winner,), others=())
    store.set_facts(finals=comparison, test=comparison, best_trial_id=3, default_metrics={"loss": 1.0})
    store.set_facts(search_ended="by a callback", search_ended_at=position if is_ended_later else 1)
    with directory.lock():
        running = read_status(directory).results
    assert (running.best, running.facts.finals) == (running.ranked[0].trial, comparison)
    killed = read_status(directory).results
    assert (killed.facts.finals, killed.facts.test, killed.facts.best_trial_id) == (None, None, None)
    assert (killed.best, killed.default_value) == (at_checkpoint.best, at_checkpoint.default_value)
    assert killed.compute == at_checkpoint.compute
    assert killed.facts.search_ended == (None if is_ended_later else "by a callback")


@pytest.mark.parametrize("more_seconds", [5, 55, 70])
def test_the_speed_of_a_killed_run_is_that_at_its_checkpoint(run: SmallRun, more_seconds: int) -> None:
    directory, store, clock = run
    work = [RankWork(rank=rank, train_seconds=1.0, num_tokens=100) for rank in range(2)]
    for step in (1, 2):
        clock.advance(2)
        store.append([_step(3, step)])
        store.add_rank_work(work, start_seconds=store.seconds - 2, end_seconds=store.seconds)
    store.record_checkpoint("checkpoint-1", checksum="aa")
    at_checkpoint = read_status(directory)
    assert at_checkpoint.tokens_per_second == pytest.approx((100 + 50 + 50 + 2 * 100) / 14)
    clock.advance(more_seconds)
    store.append([_step(3, 3)])
    store.add_rank_work(work, start_seconds=store.seconds - more_seconds, end_seconds=store.seconds)
    killed = read_status(directory)
    # what was done after the checkpoint is not counted, and neither is its time
    assert killed.tokens_per_second == at_checkpoint.tokens_per_second
    assert killed.seconds_left == at_checkpoint.seconds_left
    assert killed.ranks == at_checkpoint.ranks
    # nor is the time that a resume lost, whose steps are still to come
    store.truncate_after(store.reader.checkpoints()[-1].position)
    assert read_status(directory).seconds_left == at_checkpoint.seconds_left


def test_a_killed_run_of_the_form_before_is_shown_so_as_well(run: SmallRun) -> None:
    directory, store, _ = run
    store.record_checkpoint("checkpoint-1", checksum="aa")
    store.append([_step(3, 1)])
    store.close()
    with closing(sqlite3.connect(directory.database)) as file:
        for column in STEP_COLUMNS:
            file.execute(f"ALTER TABLE steps DROP COLUMN {column}")
        file.execute(f"PRAGMA user_version = {EARLIER_VERSION}")
    assert read_status(directory).steps_to_repeat == 1
    assert _steps_of(read_status(directory), 3) == 0


def _step(trial_id: int, step: int) -> StepDone:
    return StepDone(trial_id=trial_id, step=step, loss=1.0, grad_norm=0.5, learning_rate=1e-4, num_tokens=100)


def _evaluated(trial_id: int, step: int) -> Evaluated:
    return Evaluated(trial_id=trial_id, step=step, validation_loss=1.0, num_tokens=50)


def _steps_of(status: RunStatus, trial_id: int) -> int:
    (steps,) = (entry.trial.steps_done for entry in status.trials if entry.trial.trial_id == trial_id)
    return steps
