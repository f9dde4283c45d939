"""What a run has used: its tokens, and its part of the seconds in which a base computed."""

from __future__ import annotations

from pathlib import Path

import pytest

from cohort.core.clock import ManualClock
from cohort.engine.train.step_loop import StepLoop
from cohort.engine.turns.base_turns import BaseTurns
from cohort.engine.turns.sweep_turns import SweepTurns
from cohort.runs.reader import RunReader
from cohort.runs.results.results import read_results
from cohort.scheduling.admission import Capacity
from cohort.service.jobs.run_usage import read_usage, usage_of_run
from cohort.store.enums import UsageKind
from tests.engine.train.fakes import FakeExecutor, Task, spec_of
from tests.runs.small_run import write_small_run


def test_tokens_are_those_of_the_results(tmp_path: Path) -> None:
    _, store, _ = write_small_run(tmp_path / "run")
    compute = read_results(store.reader).compute
    usage = usage_of_run(tmp_path / "run")
    assert usage[UsageKind.TRAINED_TOKENS] == compute.trained_tokens > 0
    assert usage[UsageKind.EVALUATED_TOKENS] == compute.evaluation_tokens > 0
    store.close()


def test_a_directory_without_a_record_has_used_nothing(tmp_path: Path) -> None:
    assert usage_of_run(tmp_path) == {}
    (tmp_path / "run.db").write_bytes(b"")
    assert usage_of_run(tmp_path) == {}


def test_two_jobs_at_once_on_one_base_are_charged_no_more_than_the_wall_clock(tmp_path: Path) -> None:
    clock = ManualClock()
    executor = FakeExecutor(clock)
    turns = SweepTurns(BaseTurns(clock=clock.monotonic), fill_tokens=100)
    loop = StepLoop(
        executor,  # type: ignore[arg-type]
        capacity=Capacity(rank_rows=1024, num_slots=8, tokens_per_step=1e9),
        clock=clock,
        stop_requested=lambda: False,
        turns=turns,
    )
    tasks = [Task(tmp_path / str(place), executor, [spec_of(0)], clock=clock, place=place) for place in range(2)]
    for place, task in enumerate(tasks):
        loop.join(task.supervisor, tenant=f"tenant{place}")
    loop.run()
    for task in tasks:
        task.supervisor.complete_last_checkpoint()
    charged = []
    for task in tasks:
        with RunReader.open(task.run.directory.database) as reader:
            charged.append(read_usage(reader)[UsageKind.GPU_SECONDS])
            # each lived for as long as both together computed
            assert reader.run_seconds() == clock.monotonic()
    assert charged == [pytest.approx(clock.monotonic() / 2)] * 2
