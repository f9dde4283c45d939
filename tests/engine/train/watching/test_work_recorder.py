"""Stretches of a run's time with what each GPU did in them: few, however long the run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cohort.core.clock import ManualClock
from cohort.core.rank_work import RankWork
from cohort.engine.train.watching.work_recorder import WorkRecorder
from cohort.runs.records import RankWorkRecord
from cohort.runs.store import RunStore

CLOCK = ManualClock()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RunStore]:
    store = RunStore.create(tmp_path / "run.db", clock=CLOCK)
    yield store
    store.close()


def test_stretches_grow_with_the_run_and_miss_nothing(store: RunStore) -> None:
    totals = [0.0, 0.0]
    recorder = WorkRecorder(
        store, lambda: [RankWork(rank=rank, train_seconds=done) for rank, done in enumerate(totals)]
    )
    for _ in range(4000):
        CLOCK.advance(0.5)
        totals[0] += 0.5
        totals[1] += 0.25
        recorder.took()
    recorder.flush()
    work = store.reader.log.rank_work()
    assert len(work) < 2 * 500
    assert work[0] == RankWorkRecord(
        rank=0, start_seconds=0.0, end_seconds=1.0, train_seconds=1.0, evaluate_seconds=0.0, num_tokens=0
    )
    for rank, share in ((0, 1.0), (1, 0.5)):
        own = [record for record in work if record.rank == rank]
        assert sum(record.train_seconds for record in own) == pytest.approx(2000 * share)
        assert [record.start_seconds for record in own[1:]] == [record.end_seconds for record in own[:-1]]
        assert own[-1].end_seconds == pytest.approx(2000)


def test_a_run_on_one_gpu_records_nothing(store: RunStore) -> None:
    recorder = WorkRecorder(store, tuple)
    CLOCK.advance(5)
    recorder.took()
    recorder.flush()
    assert store.reader.log.rank_work() == []
