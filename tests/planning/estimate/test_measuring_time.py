"""The comparison at the end is part of what a task takes, bounded as the run bounds it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cohort.machine.measurements import MeasuredCosts, RunCosts
from cohort.planning.estimate.task_costs import TaskCosts
from cohort.prepare.inputs import read_inputs
from cohort.scheduling.cost.hardware import Hardware
from cohort.scheduling.cost.model import AdapterWork, StepSample
from cohort.tuning import finals_plan
from tests.cli.tiny_task import write_rows
from tests.end_to_end.tiny_tasks import tiny_task, write_inputs

CPU = Hardware(name="a CPU", memory_bytes=8e9, flops_per_second=4e10, bytes_per_second=1e10, is_gpu=False)
# two evaluated tokens a second
RUN = RunCosts(
    samples=(StepSample(pack=(AdapterWork(r=16, num_tokens=20.0, sum_squares=400.0, num_sequences=2),), seconds=2.0),),
    evaluated_tokens=10,
    evaluation_seconds=5.0,
    steps=10,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_inputs(tmp_path_factory.mktemp("measuring"))


def comparison_seconds(folder: Path, *runs: RunCosts, **sections: Any) -> float:
    task = tiny_task(folder, **sections)
    found = TaskCosts(task, read_inputs(task), CPU, MeasuredCosts(runs=runs))
    return found.time(1, found.memory.sizes(1)).comparison


def test_finalists_take_what_their_rows_take(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = tiny_task(folder)
    tokens = float(read_inputs(task).data.all_validation.lengths.sum())
    paid = {"finalists_cost_fraction": 1000.0}
    # three finalists, the base model and the default configuration, at half a second for a token
    seconds = comparison_seconds(folder, RUN, evaluation={"finalists": 3, **paid})
    assert seconds == pytest.approx(5 * tokens * 0.5)
    assert comparison_seconds(folder, RUN, evaluation={"finalists": 0}) == 0.0
    few = {"finalists": 3, "finalists_cost_fraction": 1e-9}
    assert comparison_seconds(folder, RUN, evaluation=few) == seconds, "so small a model compares all in a second"
    monkeypatch.setattr(finals_plan, "_FREE_FLOPS", {"cpu": 0.0})
    cheaper = comparison_seconds(folder, RUN, evaluation=few)
    assert 0 < cheaper < seconds
    assert comparison_seconds(folder, evaluation=paid) > 0, "arithmetic where nothing was measured"


def test_test_rows_are_measured_for_the_winner_the_default_and_the_base_model(folder: Path) -> None:
    write_rows(folder / "test.jsonl", count=7)
    sections: dict[str, Any] = {"dataset": {"test": "test.jsonl"}, "evaluation": {"finalists": 0}}
    rows = read_inputs(tiny_task(folder, **sections)).data.test
    assert rows is not None
    assert comparison_seconds(folder, RUN, **sections) == pytest.approx(3 * float(rows.lengths.sum()) * 0.5)
    generating = {**sections, "evaluation": {"finalists": 0, "metric": "exact_match", "max_new_tokens": 5}}
    assert comparison_seconds(folder, RUN, **generating) > comparison_seconds(folder, RUN, **sections)
