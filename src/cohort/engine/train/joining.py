"""A run joins an executor: from its first step, or from a checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from cohort.checkpoints.checkpoints import Manifest
from cohort.engine.train.executor_share import ExecutorShare
from cohort.engine.train.open_run import OpenRun
from cohort.engine.train.task_run import TaskRun
from cohort.prepare.group_reference import with_group_reference
from cohort.prepare.preparation import Preparation
from cohort.ranks.training_executor import TrainingExecutor

__all__ = ["join_executor"]


def join_executor(
    executor: TrainingExecutor,
    preparation: Preparation,
    run: OpenRun,
    *,
    place: int = 0,
    checkpoint: Manifest | None = None,
    turn: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> TaskRun:
    """Return a task's run with all that is measured before its first step; its trials are resident as they were.

    Args:
        executor: Built for the task, or for another that it shares it with.
        run: Its run, whose record ends at ``checkpoint``.
        place: The task's number among those that ever joined the executor, from 0.
        checkpoint: Where the run stands; None for a new one.
        turn: Held during each call of the executor, where others compute with the base model, too.
    """
    preparation, referred = with_group_reference(preparation, executor)
    share = ExecutorShare(executor, rows=preparation.inputs.data.train, place=place, turn=turn)
    member = TaskRun(preparation, share, run, arrival=place)
    try:
        if checkpoint is not None:
            # decisions first: they say which of the checkpoint's trials still train
            member.replay()
            member.supervisor.restore(checkpoint)
        member.measure_base()
    except BaseException:
        share.vacate()
        member.abandon()
        raise
    for note in (*(() if place else executor.notes), *(() if referred is None else (referred,))):
        run.watcher.note(note)
    return member
