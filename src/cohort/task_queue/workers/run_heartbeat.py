"""What a worker says of a run that goes on."""

from __future__ import annotations

from cohort.engine.train.watching.progress import RunProgress
from cohort.task_queue.workers.messages import Heartbeat
from cohort.tuning.trial_status import TrialStatus

__all__ = ["heartbeat_of"]


def heartbeat_of(task: str, progress: RunProgress) -> Heartbeat:
    best = progress.best
    early = sum(progress.count(status) for status in (TrialStatus.STOPPED, TrialStatus.FAILED))
    return Heartbeat(
        task=task,
        phase=progress.phase,
        steps_done=sum(trial.steps_done for trial in progress.trials),
        planned_steps=sum(trial.planned_steps for trial in progress.trials),
        seconds_left=progress.seconds_left_at_worst,
        num_trials=len(progress.trials),
        num_ended=early + progress.count(TrialStatus.COMPLETED),
        num_early=early,
        best_value=None if best is None else best.best_value,
        tokens_per_second=progress.tokens_per_second,
    )
