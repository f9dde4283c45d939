"""Where trials go on, and what becomes of a best checkpoint that is on record and nowhere else."""

from __future__ import annotations

from pathlib import Path

from cohort.checkpoints.trial_states import TrialStateStore
from cohort.core.clock import ManualClock
from cohort.engine.train.trial_starts import TrialStarts
from tests.engine.train.fakes import FakeExecutor, Task, spec_of


def test_a_trial_whose_best_checkpoint_is_lost_comes_by_it_again(tmp_path: Path) -> None:
    clock = ManualClock()
    executor = FakeExecutor(clock)
    task = Task(tmp_path / "run", executor, [spec_of(0, num_steps=6)], clock=clock)
    supervisor = task.supervisor
    supervisor.enter(0)
    for _ in range(3):
        supervisor.took_step(executor.step([0]), [], seconds=1.0)
    assert supervisor.starts.lost_best(0) is None
    best = task.study.best_of(0)
    assert best is not None
    assert best.step == 2
    supervisor.checkpoint()
    # its state is there, but beyond its best checkpoint
    empty = TrialStateStore(task.run.directory, memory_budget_bytes=1 << 20)
    object.__setattr__(task.run, "state_store", empty)
    starts = TrialStarts(task.run, study=task.study, share=supervisor.share, specs=task.specs)
    assert starts.lost_best(0) == 2
    assert starts.current(0) == (None, ())
    executor.drop(0)
    starts.load_first(0)
    assert supervisor.steps_to_evaluation(0) == 2
    evaluated = len(task.evaluated)
    for _ in range(3):
        supervisor.took_step(executor.step([0]), [], seconds=1.0)
    kept = empty.best(0)
    assert kept is not None
    assert (kept[1], kept[0].unique().tolist()) == (2, [2.0])
    # what is on record is neither evaluated nor recorded twice
    assert len(task.evaluated) == evaluated
    assert task.study.trajectory(0).num_steps == 3


def test_a_trial_on_its_way_to_a_lost_best_checkpoint_goes_on_after_each_eviction(tmp_path: Path) -> None:
    clock = ManualClock()
    executor = FakeExecutor(clock)
    task = Task(tmp_path / "run", executor, [spec_of(0, num_steps=6)], clock=clock)
    supervisor = task.supervisor
    supervisor.enter(0)
    for _ in range(4):
        supervisor.took_step(executor.step([0]), [], seconds=1.0)
    best = task.study.best_of(0)
    assert best is not None
    assert best.step == 4
    supervisor.evict(0)
    store = task.run.state_store
    store.forget_best(0)
    assert (store.state_step(0), supervisor.starts.lost_best(0)) == (4, 4)
    entered = []
    for _ in range(4):
        supervisor.enter(0)
        entered.append(executor.steps_of(0))
        supervisor.took_step(executor.step([0]), [], seconds=1.0)
        if executor.steps_of(0) == 3:
            # a checkpoint and a kill: the next process has what the files hold
            supervisor.checkpoint()
        supervisor.evict(0)
    assert entered == [0, 1, 2, 3]
    kept = store.best(0)
    assert kept is not None
    assert (kept[1], kept[0].unique().tolist()) == (4, [4.0])
    # from here on it is a trial like others
    assert supervisor.starts.lost_best(0) is None
    supervisor.enter(0)
    assert executor.steps_of(0) == 4
