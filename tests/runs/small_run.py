"""A run of four trials that end in different ways, small enough to be counted by hand."""

from __future__ import annotations

import math
from pathlib import Path

from cohort.core.clock import ManualClock
from cohort.core.events import Evaluated, StepDone
from cohort.runs.directory import RunDirectory
from cohort.runs.fact_groups import RunPlaces
from cohort.runs.records import TrialRecord
from cohort.runs.store import RunStore
from cohort.tuning.decisions import Decision, DecisionKind, Reason
from tests.runs.synthetic_run import new_best


def _step(trial_id: int, step: int, *, loss: float = 1.0, tokens: int = 100) -> StepDone:
    return StepDone(trial_id=trial_id, step=step, loss=loss, grad_norm=0.5, learning_rate=1e-4, num_tokens=tokens)


__all__ = ["SmallRun", "write_small_run"]

SmallRun = tuple[RunDirectory, RunStore, ManualClock]


def _evaluated(trial_id: int, step: int, loss: float, **metrics: float) -> Evaluated:
    return Evaluated(trial_id=trial_id, step=step, validation_loss=loss, metrics=metrics, num_tokens=50)


def write_small_run(root: Path) -> SmallRun:
    """Four trials: 0 completes, 1 is stopped, 2 diverges to NaN without an evaluation, 3 never begins."""
    directory = RunDirectory.create(root)
    store = RunStore.create(directory.database, clock=(clock := ManualClock()))
    store.set_facts(
        task_name="gsm8k", places=RunPlaces(base_model="meta-llama/Llama-3.2-1B"), base_metrics={"loss": 3.0}
    )
    store.add_trials(
        [
            TrialRecord(
                trial_id=n,
                parameters={"learning_rate": 1e-5, "r": 24, "batch_size": 2, "target_modules": ["q", "v"]},
                planned_steps=4,
                planned_tokens=None if n == 2 else 400,
                seed=n,
            )
            for n in range(4)
        ]
    )
    store.append([_step(0, step, tokens=100) for step in range(1, 5)])
    for evaluated in (_evaluated(0, 2, 2.0, exact_match=0.5), _evaluated(0, 4, 1.5)):
        store.append([evaluated], [new_best(evaluated)])
    clock.advance(10)
    evaluated = _evaluated(1, 1, 1.25)
    store.append([_step(1, 1), evaluated, _step(2, 1, loss=math.nan, tokens=50)], [new_best(evaluated)])
    stop, finish = DecisionKind.STOP, DecisionKind.FINISH
    store.append(
        [],
        [
            Decision(trial_id=0, step=4, kind=finish, reason=Reason("completed"), rule="study"),
            Decision(trial_id=1, step=1, kind=stop, reason=Reason("underperforming"), rule="patterns"),
            Decision(trial_id=2, step=1, kind=stop, reason=Reason("non-finite"), rule="patterns"),
        ],
    )
    return directory, store, clock
