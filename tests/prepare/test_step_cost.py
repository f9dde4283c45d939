"""Seconds of a step here: arithmetic until a run has measured steps, and evaluations as a part of each step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cohort.machine.devices import hardware_of
from cohort.machine.measurements import RunCosts, write_costs
from cohort.prepare.inputs import machine_of, read_inputs
from cohort.prepare.proposals import TrialProposals
from cohort.prepare.step_cost import expected_step_cost, work_with_evaluations
from cohort.scheduling.cost.model import StepSample
from tests.end_to_end.tiny_tasks import tiny_task, write_inputs


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_inputs(tmp_path_factory.mktemp("tiny"))


def test_evaluations_are_spread_over_the_steps(folder: Path) -> None:
    task = tiny_task(folder)
    inputs = read_inputs(task)
    spec = TrialProposals(task, inputs.data.train, saved=None).first[0].spec
    alone = work_with_evaluations(spec, task=task, inputs=inputs, num_evaluations=0, num_rows=4)
    assert alone.num_tokens == pytest.approx(2 * inputs.data.train.lengths.mean())
    assert (alone.num_steps, alone.num_sequences) == (8, 2)
    # half a forward and backward pass of each row, 4 times 4 rows over 8 steps
    more = work_with_evaluations(spec, task=task, inputs=inputs, num_evaluations=4, num_rows=4)
    assert more.num_sequences == 3
    assert more.num_tokens - alone.num_tokens == pytest.approx(inputs.data.validation.lengths.mean())


def test_measured_steps_replace_arithmetic(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COHORT_CACHE_DIR", str(tmp_path))
    task = tiny_task(folder)
    inputs, machine = read_inputs(task), machine_of(task)
    spec = TrialProposals(task, inputs.data.train, saved=None).first[0].spec
    work = work_with_evaluations(spec, task=task, inputs=inputs, num_evaluations=0, num_rows=4)
    analytic = expected_step_cost(inputs, machine, works=(work,))
    assert analytic.launches is None, "the planner's programs need a convex cost"
    assert analytic.step_seconds([work]) > 0
    slow = [
        StepSample(pack=(replace(work, num_tokens=tokens),) * count, seconds=2 * analytic.step_seconds([work] * count))
        for tokens in (work.num_tokens,)
        for count in (1, 2, 3, 4)
    ]
    key = inputs.cost_key(hardware=hardware_of(machine).name, precision=machine.precision)
    write_costs(key, RunCosts(samples=tuple(slow), steps=4))
    measured = expected_step_cost(inputs, machine, works=(work,))
    assert measured.step_seconds([work] * 2) == pytest.approx(2 * analytic.step_seconds([work] * 2), rel=0.2)
