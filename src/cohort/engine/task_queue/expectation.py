"""How long a task of a queue is expected to hold its slot, before it runs and when it goes on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from cohort.cluster.local import LocalSlot
from cohort.core.errors import CohortError, RunStateError
from cohort.engine.machine import choose_machine
from cohort.engine.run_directory import RunDirectory
from cohort.engine.status import read_status
from cohort.engine.task_estimates import estimate_task, hardware_of
from cohort.engine.task_queue.records import QueuedTask
from cohort.engine.task_queue.submission import task_of
from cohort.engine.task_sketch import START_SECONDS
from cohort.scheduling.hardware import Hardware

__all__ = ["Expectation", "hardware_of_slots"]

_PROBE = (
    "import json, dataclasses; from cohort.engine.machine import choose_machine; "
    "from cohort.engine.task_estimates import hardware_of; "
    "print(json.dumps(dataclasses.asdict(hardware_of(choose_machine('auto', where='num_gpus')))))"
)


def hardware_of_slots(slots: Sequence[LocalSlot]) -> Hardware:
    """Return what one slot has; all are taken to be like the first.

    A GPU is asked in a process of its own: the head itself must not hold memory of any.

    Raises:
        RunStateError: the GPU cannot be used.
    """
    environment = slots[0].environment
    if not environment.get("CUDA_VISIBLE_DEVICES"):
        whole = choose_machine(0, where="num_gpus")
        threads = int(environment.get("OMP_NUM_THREADS", os.environ.get("OMP_NUM_THREADS", whole.threads)))
        return hardware_of(replace(whole, threads=threads, memory_bytes=whole.memory_bytes // len(slots)))
    asked = subprocess.run(
        [sys.executable, "-c", _PROBE],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        return Hardware(**json.loads(asked.stdout.splitlines()[-1]))
    except (IndexError, ValueError, TypeError) as error:
        said = asked.stderr.strip()[-2000:] or asked.stdout
        raise RunStateError(f"{slots[0].slot.device} cannot be used: {said}; see `cohort doctor`") from error


class Expectation:
    """Predicts tasks of one queue."""

    def __init__(self, directory: Path, hardware: Hardware) -> None:
        """Predict tasks of the queue in ``directory`` for workers that each have ``hardware``."""
        self._directory, self._hardware = directory, hardware

    def __call__(self, queued: QueuedTask) -> float:
        """Return the seconds that a task has left; at worst, without early exit, where it has not begun.

        Raises:
            InputError: something is wrong with what the task names, or it fits no slot.
        """
        left = self._seconds_left(queued.name)
        if left is not None:
            return left
        task = task_of(queued)
        # a worker starts once and then runs one task after the other
        return max(estimate_task(task, self._hardware).seconds - START_SECONDS, 1e-3)

    def _seconds_left(self, name: str) -> float | None:
        """Return what a run that has begun says itself; None for one that cannot tell yet."""
        directory = RunDirectory(self._directory / name)
        if not directory.database.exists():
            return None
        try:
            return read_status(directory).seconds_left
        except CohortError:
            return None
