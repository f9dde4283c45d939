"""A run of the product's own loop over planned trials, whose losses are those of recorded curves."""

from __future__ import annotations

import contextlib
import math
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from torch import Tensor

from benchmarks.sweeps.sweep_grid import PlannedGridTrial
from cohort.checkpoints.trial_states import TrialStateStore
from cohort.core.clock import SystemClock
from cohort.core.events import Evaluated
from cohort.data.tokenised import TokenisedRows
from cohort.engine.train.executor_share import ExecutorShare
from cohort.engine.train.open_run import OpenRun, RunOptions
from cohort.engine.train.step_loop import StepLoop
from cohort.engine.train.supervisor import Supervisor
from cohort.engine.train.task_traits import TaskTraits
from cohort.memory.budget import Sizes
from cohort.ranks.training_executor import TrainingExecutor
from cohort.runs.directory import RunDirectory
from cohort.runs.records import TrialRecord
from cohort.runs.store import RunStore
from cohort.training.trial import TrialState
from cohort.tuning import EarlyExitSettings, Study

__all__ = ["Losses", "Trained", "train_all"]


class Losses(Protocol):
    """Recorded losses."""

    def at(self, trial_id: int, share: float) -> tuple[float, float]:
        """Return the (train, validation) loss after ``share`` of the planned steps."""
        ...


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What a run took.

    Attributes:
        seconds: Wall time of the loop.
        shelf_seconds: Of them: moves of states from the device to the host.
        saved_share: Share of the full grid's examples that were not trained on.
    """

    seconds: float
    shelf_seconds: float
    saved_share: float


def train_all(
    executor: TrainingExecutor,
    planned: Sequence[PlannedGridTrial],
    *,
    train_rows: TokenisedRows,
    curves: Losses,
    early_exit: EarlyExitSettings,
    sizes: Sizes,
    validation: TokenisedRows,
    num_evaluation_rows: int,
    host_memory_bytes: int,
    window_steps: int = 1,
) -> Trained:
    """Train, park, select and continue all trials as a run does; ``executor`` reports train losses of ``curves``."""
    study, clock = Study([trial.candidate for trial in planned], early_exit), SystemClock()
    # a state may still be on its way to a file when something fails: that must not hide what failed
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        directory, store = _begun_run(Path(folder), planned)
        state_store = _TimedShelf(
            directory, memory_budget_bytes=host_memory_bytes, device_budget_bytes=sizes.device_state_bytes
        )
        supervisor = _Unsaved(
            OpenRun(
                directory=directory,
                store=store,
                state_store=state_store,
                clock=clock,
                options=RunOptions(checkpoint_seconds=math.inf),
            ),
            study=study,
            share=ExecutorShare(executor, rows=train_rows),
            specs={trial.spec.trial_id: trial.spec for trial in planned},
            evaluate=_replaying(executor, study, curves=curves, rows=validation, num_rows=num_evaluation_rows),
            traits=TaskTraits(mean_length=float(train_rows.lengths.mean())),
        )
        session = StepLoop(
            executor,
            capacity=sizes.capacity,
            clock=clock,
            stop_requested=lambda: False,
            window_steps=window_steps,
        )
        session.join(supervisor)
        begun = time.perf_counter()
        session.run()
        seconds = time.perf_counter() - begun
        # which waits for files on their way: their folder is about to go
        state_store.remove_files_except(())
        store.close()
    return Trained(seconds=seconds, shelf_seconds=state_store.seconds, saved_share=_saved_share(study, planned))


class _TimedShelf(TrialStateStore):
    """A state store that adds up what it takes to move states from the device to the host."""

    seconds = 0.0

    def put_state(self, trial_id: int, state: TrialState) -> None:
        """As the state store's."""
        with self._timed():
            super().put_state(trial_id, state)

    def put_best(self, trial_id: int, weights_rD: Tensor, *, step: int) -> None:
        """As the state store's."""
        with self._timed():
            super().put_best(trial_id, weights_rD, step=step)

    @contextlib.contextmanager
    def _timed(self) -> Iterator[None]:
        begun = time.perf_counter()
        yield
        self.seconds += time.perf_counter() - begun


class _Unsaved(Supervisor):
    """The product's supervisor without its checkpoints, which cost by the clock and not by the step."""

    def checkpoint(self, *, bests_of: Collection[int] | None = None) -> None:
        """Save nothing."""

    def begin_last_checkpoint(self) -> None:
        """Save nothing."""

    def checkpoint_when_due(self) -> None:
        """Save nothing."""


def _replaying(
    executor: TrainingExecutor, study: Study, *, curves: Losses, rows: TokenisedRows, num_rows: int
) -> Callable[[Mapping[int, int]], list[Evaluated]]:
    """Return evaluations that are carried out and timed, but whose losses are those of ``curves``."""

    def evaluate(steps: Mapping[int, int]) -> list[Evaluated]:
        found = executor.evaluate(tuple(steps), rows=rows, row_ids=range(num_rows))
        return [
            Evaluated(
                trial_id=trial_id,
                step=step,
                validation_loss=curves.at(trial_id, step / study.candidate(trial_id).planned_steps)[1],
                metrics={},
                num_tokens=found[trial_id].num_tokens,
            )
            for trial_id, step in steps.items()
        ]

    return evaluate


def _begun_run(folder: Path, planned: Sequence[PlannedGridTrial]) -> tuple[RunDirectory, RunStore]:
    directory = RunDirectory.create(folder / "run")
    store = RunStore.create(directory.database)
    store.add_trials([_record(trial) for trial in planned])
    return directory, store


def _saved_share(study: Study, planned: Sequence[PlannedGridTrial]) -> float:
    """Return the share of the full grid's examples that were not trained on."""
    used = sum(study.trajectory(trial.spec.trial_id).num_steps * trial.spec.batch_size for trial in planned)
    return 1 - used / sum(trial.candidate.planned_steps * trial.spec.batch_size for trial in planned)


def _record(trial: PlannedGridTrial) -> TrialRecord:
    return TrialRecord(
        trial_id=trial.spec.trial_id,
        parameters={"learning_rate": trial.learning_rate, "r": trial.spec.adapter.r},
        planned_steps=trial.candidate.planned_steps,
        seed=0,
        planned_tokens=0,
    )
