"""The samples of a step: each trial's own order, divisors of the whole step, dropout keys by step and row."""

from __future__ import annotations

import numpy as np
import pytest

from cohort.adapters.spec import AdapterSpec
from cohort.kernels.dropout import row_keys
from cohort.training.objectives import DEFAULT_OBJECTIVE
from cohort.training.objectives.objective import Objective
from cohort.training.step_samples import Resident, finish_step, gather, samples_of
from cohort.training.trial import TrialSpec
from tests.training.small_models import random_rows

ROWS = random_rows(12, seed=1)


def resident(
    trial_id: int,
    *,
    batch_size: int,
    step: int = 0,
    dropout: float = 0.0,
    groups: int = 12,
    objective: Objective = DEFAULT_OBJECTIVE,
) -> Resident:
    spec = TrialSpec(
        trial_id=trial_id,
        seed=trial_id,
        adapter=AdapterSpec(r=4, lora_alpha=4.0, lora_dropout=dropout),
        learning_rate=1e-3,
        batch_size=batch_size,
        num_steps=6,
        objective=objective,
    )
    return Resident(spec=spec, slot=trial_id, step=step, order=spec.order(groups), rows=ROWS)


def test_a_step_holds_the_rows_of_each_trials_own_order() -> None:
    residents = [resident(0, batch_size=3, step=2), resident(1, batch_size=5)]
    samples = gather(residents)
    assert [entry.slot for entry in samples.entries] == [0] * 3 + [1] * 5
    ids = [entry.sample.sample_id for entry in samples.entries]
    assert ids == [*residents[0].order.batch(2), *residents[1].order.batch(0)]
    for slot in (0, 1):
        own = [entry.sample for entry in samples.entries if entry.slot == slot]
        assert samples.terms[slot].divisor == sum(int(sample.trained.sum()) for sample in own)
        assert samples.num_tokens[slot] == sum(len(sample.tokens) for sample in own)
    assert [(spec.trial_id, slot, step) for spec, slot, step in samples.steps] == [(0, 0, 2), (1, 1, 0)]


def test_a_step_ahead_is_the_next_one() -> None:
    one = resident(0, batch_size=3)
    ahead = gather([one], ahead=1)
    one.step += 1
    now = gather([one])
    assert ahead.steps == now.steps
    assert [entry.sample.sample_id for entry in ahead.entries] == [entry.sample.sample_id for entry in now.entries]


@pytest.mark.parametrize("size", [2, 3])
def test_the_rows_of_a_group_follow_each_other(size: int) -> None:
    class Sets(Objective):
        group_size = size

    one = resident(0, batch_size=2, groups=12 // size, objective=Sets())
    found = samples_of(one, step=1)
    assert {entry.group_size for entry in found} == {size}
    ids = [entry.sample.sample_id for entry in found]
    assert ids == [size * group + place for group in one.order.batch(1) for place in range(size)]


def test_dropout_keys_follow_from_trial_step_and_row() -> None:
    for entry in samples_of(resident(0, batch_size=2), step=3):
        assert entry.row_keys is None
    for entry in samples_of(resident(5, batch_size=2, dropout=0.5), step=3):
        row_id = entry.sample.sample_id
        expected = row_keys(len(entry.sample.tokens), trial_seed=5, step=3, sample_id=row_id)
        assert entry.row_keys is not None
        assert np.array_equal(entry.row_keys, expected)


def test_a_finished_step_reports_each_trials_mean_and_counts() -> None:
    residents = [resident(0, batch_size=2, step=3), resident(1, batch_size=1)]
    samples = gather(residents)
    events = finish_step(samples, terms=[3.0, 5.0, 7.0], norms=[0.5, 0.25])
    assert [(event.trial_id, event.step, event.grad_norm) for event in events] == [(0, 4, 0.5), (1, 1, 0.25)]
    assert [event.loss for event in events] == [8.0 / samples.terms[0].divisor, 7.0 / samples.terms[1].divisor]
    # warm-up and schedule are those of the step that was taken
    assert [event.learning_rate for event in events] == [
        resident(0, batch_size=2).spec.learning_rate_at(3),
        resident(1, batch_size=1).spec.learning_rate_at(0),
    ]
