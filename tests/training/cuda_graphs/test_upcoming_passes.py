"""The passes to come are those that the executor then makes."""

from __future__ import annotations

import itertools
import weakref
from dataclasses import replace

import pytest

from cohort.adapters.spec import AdapterSpec
from cohort.data.packing import split_micro_batches
from cohort.training.cuda_graphs.pass_shape import PassShape
from cohort.training.cuda_graphs.upcoming_passes import LOOKAHEAD, UpcomingPasses
from cohort.training.objectives import OBJECTIVES
from cohort.training.step_samples import Resident, gather
from cohort.training.trial import TrialSpec
from tests.training.small_models import compared_rows

ROWS = compared_rows(40, seed=2)


def resident(trial_id: int, *, batch_size: int, objective: str = "sft", num_steps: int = 60) -> Resident:
    spec = TrialSpec(
        trial_id=trial_id,
        seed=trial_id,
        adapter=AdapterSpec(r=4, lora_alpha=4.0),
        learning_rate=1e-3,
        batch_size=batch_size,
        num_steps=num_steps,
        objective=OBJECTIVES[objective],
    )
    order = spec.order(len(ROWS) // spec.objective.group_size)
    return Resident(spec=spec, slot=trial_id, step=0, order=order, rows=ROWS)


@pytest.mark.parametrize("objective", ["sft", "dpo"])
def test_they_are_the_passes_of_the_next_steps(objective: str) -> None:
    """Over several epochs, with a trial that ends on the way, and steps that take two passes."""
    residents = [resident(0, batch_size=3, objective=objective), resident(1, batch_size=1, num_steps=20)]
    upcoming, budget = UpcomingPasses(), 120
    for step in range(0, 40, 7):
        for trial in residents:
            trial.step = step
        present = [trial for trial in residents if step < trial.spec.num_steps]
        expected = []
        for ahead in range(1, LOOKAHEAD + 1):
            going = [trial for trial in present if step + ahead < trial.spec.num_steps]
            if not going:
                break
            entries = gather(going, ahead=ahead).entries
            starts = [0]
            while starts[-1] < len(entries):
                starts.append(starts[-1] + entries[starts[-1]].group_size)
            lengths = [
                sum(len(entry.sample.tokens) for entry in entries[first:stop])
                for first, stop in itertools.pairwise(starts)
            ]
            for run in split_micro_batches(lengths, token_budget=budget):
                expected.append(PassShape.of(entries[starts[run.start] : starts[run.stop]]))
        found = upcoming.after(present, token_budget=budget)
        # what was looked at before is not looked at again, and reaches less far
        assert len(found) >= len(expected) // 3
        assert found == expected[: len(found)]


def test_a_trial_that_leaves_changes_them_and_dropout_does_not() -> None:
    residents, upcoming = [resident(0, batch_size=2), resident(1, batch_size=4)], UpcomingPasses()
    both = upcoming.after(residents, token_budget=10_000)
    alone = upcoming.after(residents[:1], token_budget=10_000)
    assert len(both) == len(alone) == LOOKAHEAD
    assert all(shape.num_sequences == 6 for shape in both)
    assert all(shape.num_sequences == 2 for shape in alone)
    dropping = residents[0]
    dropping.spec = replace(dropping.spec, adapter=AdapterSpec(r=4, lora_alpha=4.0, lora_dropout=0.1))
    assert upcoming.after([dropping], token_budget=10_000) == alone
    assert upcoming.after([], token_budget=10_000) == []


def test_rows_of_a_task_that_left_are_let_go() -> None:
    upcoming, leaving = UpcomingPasses(), replace(resident(1, batch_size=2), rows=compared_rows(40, seed=3))
    upcoming.after([resident(0, batch_size=2), leaving], token_budget=10_000)
    rows = weakref.ref(leaving.rows)
    del leaving
    upcoming.after([resident(0, batch_size=2)], token_budget=10_000)
    assert rows() is None
