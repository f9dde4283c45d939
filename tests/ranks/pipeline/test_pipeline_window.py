"""From lengths to a schedule and back to samples: each group whole, each batch ended once."""

from __future__ import annotations

from typing import ClassVar

import pytest

from cohort.adapters.spec import AdapterSpec
from cohort.ranks.pipeline.pipeline_window import batches_of, pipeline_window
from cohort.scheduling.pipelines.microbatch.records import MicroBatch, PipelineSample
from cohort.training.objectives import OBJECTIVES
from cohort.training.objectives.objective import Objective
from cohort.training.step_samples import Resident, samples_of
from cohort.training.trial import TrialSpec
from tests.training.small_models import random_rows

ROWS = random_rows(12, seed=2, longest=20)


class Pairs(Objective):
    """Two rows share a term."""

    group_size: ClassVar[int] = 2


def resident(objective: Objective) -> Resident:
    spec = TrialSpec(
        trial_id=5,
        seed=0,
        adapter=AdapterSpec(r=4, lora_alpha=4.0),
        learning_rate=1e-3,
        batch_size=2,
        num_steps=6,
        objective=objective,
    )
    order = spec.order(len(ROWS) // objective.group_size)
    return Resident(spec=spec, slot=1, step=0, order=order, rows=ROWS)


def test_rows_that_are_compared_are_one_sample_of_the_schedule_and_stay_together() -> None:
    own = resident(Pairs())
    batches = batches_of(own, num_steps=2)
    entries = [samples_of(own, step=step) for step in range(2)]
    tokens = [[len(entry.sample.tokens) for entry in step] for step in entries]
    assert batches.adapter == 1
    assert batches.lengths == tuple(tuple(a + b for a, b in zip(step[::2], step[1::2], strict=True)) for step in tokens)
    # the first step in two micro-batches, the second in one, each the other way round
    schedule = [
        MicroBatch(samples=(PipelineSample(1, 0, 0, batches.lengths[0][0]),)),
        MicroBatch(samples=(PipelineSample(1, 0, 1, batches.lengths[0][1]),)),
        MicroBatch(samples=tuple(PipelineSample(1, 1, place, batches.lengths[1][place]) for place in (1, 0))),
    ]
    window = pipeline_window(schedule, {1: own})
    passed = [entry.sample.sample_id for each in window for entry in each.entries]
    assert passed == [entry.sample.sample_id for step in entries for entry in step]
    assert [each.ends for each in window] == [(), (1,), (1,)]
    assert [len(each.entries) for each in window] == [2, 2, 4]


def test_an_objective_that_measures_before_a_step_has_no_pipeline() -> None:
    with pytest.raises(ValueError, match="kto's KL term"):
        batches_of(resident(OBJECTIVES["kto"]), num_steps=1)
