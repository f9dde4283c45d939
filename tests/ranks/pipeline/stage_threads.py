"""Stages of a pipeline as threads of one process, and their mail."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor

from cohort.adapters.layout import AdapterLayout
from cohort.models.weights import load_decoder
from cohort.ranks.pipeline.staged_executor import StagedExecutor
from cohort.ranks.rank_group import PipelineGroup
from cohort.scheduling.pipelines.pipeline_schedule import Direction
from cohort.training.executor_settings import ExecutorSettings
from cohort.training.optimizers import DEFAULT_OPTIMIZER
from cohort.training.optimizers.optimizer import Optimizer

__all__ = ["QueueLinks", "StageThreads", "stage_threads"]

T = TypeVar("T")


class QueueLinks:
    """Links between threads."""

    def __init__(self, stage: int, mail: dict[tuple[Any, ...], queue.Queue[Tensor]], lock: threading.Lock) -> None:
        self._stage, self._mail, self._lock = stage, mail, lock
        self.sent: list[tuple[int, Direction]] = []
        # by link, as a library without tags would match them
        self.sent_to: dict[tuple[int, bool], list[tuple[int, Direction]]] = {}
        self.received_from: dict[tuple[int, bool], list[tuple[int, Direction]]] = {}

    def _box(self, *key: Any) -> queue.Queue[Tensor]:
        with self._lock:
            return self._mail.setdefault(key, queue.Queue())

    def send(self, message: Tensor, *, to: int, number: int, direction: Direction) -> None:
        self.sent.append((number, direction))
        self.sent_to.setdefault((to, direction is Direction.HEAD), []).append((number, direction))
        self._box(self._stage, to, number, direction).put(message.clone())

    def receive(self, into: Tensor, *, sender: int, number: int, direction: Direction) -> Tensor:
        self.received_from.setdefault((sender, direction is Direction.HEAD), []).append((number, direction))
        found = self._box(sender, self._stage, number, direction).get(timeout=60)
        assert found.shape == into.shape
        return found

    def flush(self) -> None:
        pass


class StageThreads:
    """All stages of one pipeline; every call goes to each of them, at the same time."""

    def __init__(self, stages: list[StagedExecutor]) -> None:
        self.stages = stages

    def all(self, work: Callable[[StagedExecutor], T]) -> list[T]:
        """Return what ``work`` returns for each stage, in their order."""
        found: list[Any] = [None] * len(self.stages)
        errors: list[BaseException] = []

        def run(number: int) -> None:
            try:
                found[number] = work(self.stages[number])
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(len(self.stages))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        return found


def stage_threads(
    model: Path, plan: PipelineGroup, *, settings: ExecutorSettings, rows: Any, optimizer: Optimizer = DEFAULT_OPTIMIZER
) -> StageThreads:
    """Return the stages of ``plan`` over the model in a folder."""
    mail: dict[tuple[Any, ...], queue.Queue[Tensor]] = {}
    lock, layout = threading.Lock(), AdapterLayout(dict(load_decoder(model).linears))
    stages = [
        StagedExecutor(
            load_decoder(model, part=plan.layers(stage), has_head=plan.shares_head),
            plan,
            stage=stage,
            links=QueueLinks(stage, mail, lock),
            layout=layout,
            train_rows=rows,
            settings=settings,
            optimizer=optimizer,
        )
        for stage in range(plan.size)
    ]
    return StageThreads(stages)
