"""Steps that a trial took before are taken again, up to a checkpoint that was lost."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from torch import Tensor

from cohort.engine.train.task_run import TaskRun
from cohort.ranks.training_executor import TrainingExecutor

__all__ = ["trained_to"]


def trained_to(
    member: TaskRun, executor: TrainingExecutor, steps: Mapping[int, int]
) -> Iterator[tuple[int, Tensor, float]]:
    """Train trials of ``member`` from their first step, together; yield each after ``steps``, and drop it then.

    Yields:
        The trial, its weights [r, D], and the largest difference between a step's loss and that on record.
    """
    share, starts = member.supervisor.share, member.supervisor.starts
    recorded = member.run.store.reader.log.train_losses()
    losses = {trial_id: dict(recorded.get(trial_id, ())) for trial_id in steps}
    largest = dict.fromkeys(steps, 0.0)
    # the longest first: the others leave one after the other
    waiting = sorted(steps, key=lambda trial_id: (-steps[trial_id], trial_id))
    while waiting or share.resident:
        while waiting and starts.fits(waiting[0]):
            starts.load_first(waiting.pop(0))
        for event in executor.step(sorted(executor.resident)):
            trial_id = share.trial_of(event.trial_id)
            assert trial_id is not None, "no other task is in the executor"
            before = losses[trial_id].get(event.step, event.loss)
            if event.loss != before and not (math.isnan(event.loss) and math.isnan(before)):
                largest[trial_id] = max(largest[trial_id], abs(event.loss - before))
        for trial_id in share.resident:
            if share.steps_of(trial_id) == steps[trial_id]:
                weights_rD = share.weights(trial_id)
                share.drop(trial_id)
                yield trial_id, weights_rD, largest[trial_id]
