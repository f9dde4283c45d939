"""An executor that counts instead of training, and the parts around it, for tests of what happens between steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cohort.adapters.adapter_state import AdapterState
from cohort.adapters.spec import AdapterSpec
from cohort.checkpoints.trial_states import TrialStateStore
from cohort.core.clock import ManualClock
from cohort.core.events import Evaluated, StepDone, TrialEvent, TrialFailed
from cohort.core.rank_work import RankWork
from cohort.engine.train.executor_share import ExecutorShare
from cohort.engine.train.open_run import OpenRun, RunOptions
from cohort.engine.train.supervisor import Supervisor
from cohort.engine.train.task_traits import TaskTraits
from cohort.ranks.local_executor import LocalExecutor
from cohort.runs.directory import RunDirectory
from cohort.runs.records import TrialRecord
from cohort.runs.store import RunStore
from cohort.training.trial import TrialSpec, TrialState
from cohort.tuning.candidate import Candidate
from cohort.tuning.decisions import Decision
from cohort.tuning.early_exit.settings import EarlyExitSettings
from cohort.tuning.study import Study

__all__ = ["AheadExecutor", "FakeExecutor", "Notes", "Task", "open_run", "spec_of"]

WIDTH = 4


class Notes:
    """A watcher that keeps what it receives."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.snapshots: list[Any] = []

    def update(self, progress: object) -> None:
        self.snapshots.append(progress)

    def note(self, text: str) -> None:
        self.notes.append(text)


def spec_of(trial_id: int, *, num_steps: int = 4, batch_size: int = 1, r: int = 2) -> TrialSpec:
    return TrialSpec(
        trial_id=trial_id,
        seed=trial_id,
        adapter=AdapterSpec(r=r, lora_alpha=4.0),
        learning_rate=1e-3,
        batch_size=batch_size,
        num_steps=num_steps,
    )


class FakeExecutor:
    """Trains by adding one to each weight of a resident trial; a step takes a second and ten tokens a sample."""

    # one rank
    work: tuple[RankWork, ...] = ()

    def __init__(self, clock: ManualClock, *, num_slots: int = 8) -> None:
        self._clock, self._num_slots = clock, num_slots
        self._trials: dict[int, tuple[TrialSpec, Tensor, int]] = {}
        self.reliefs: list[Callable[[], bool]] = []
        self.packs: list[tuple[int, ...]] = []
        # raised by a step that holds the trial, as long as the list is not empty
        self.errors: dict[int, list[Exception]] = {}

    @property
    def resident(self) -> tuple[int, ...]:
        return tuple(self._trials)

    def fits(self, spec: TrialSpec) -> bool:
        return len(self._trials) < self._num_slots

    def load(
        self, spec: TrialSpec, state: TrialState | None = None, *, rows: object = None, rank: int | None = None
    ) -> int:
        weights = torch.zeros(spec.adapter.r, WIDTH) if state is None else state.adapter.weights.clone()
        self._trials[spec.trial_id] = (spec, weights, 0 if state is None else state.step)
        return len(self._trials) - 1

    def take_failures(self) -> tuple[TrialFailed, ...]:
        return ()

    def step(self, keys: Sequence[int]) -> list[StepDone]:
        self.packs.append(tuple(keys))
        for key in keys:
            if self.errors.get(key):
                raise self.errors[key].pop(0)
        self._clock.advance(1.0)
        events = []
        for key in keys:
            spec, weights, done = self._trials[key]
            self._trials[key] = (spec, weights + 1, done + 1)
            tokens = 10 * spec.batch_size
            events.append(
                StepDone(trial_id=key, step=done + 1, loss=1.0, grad_norm=1.0, learning_rate=1e-3, num_tokens=tokens)
            )
        return events

    def state(self, trial_id: int, *, on_device: bool = False) -> TrialState:
        _, weights, done = self._trials[trial_id]
        moments = {name: torch.zeros_like(weights) for name in ("exp_avg", "exp_avg_sq")}
        return TrialState(adapter=AdapterState(weights=weights.clone(), moments=moments), step=done)

    def weights(self, trial_id: int, *, on_device: bool = False) -> Tensor:
        return self._trials[trial_id][1].clone()

    def drop(self, trial_id: int) -> None:
        del self._trials[trial_id]

    def slot_of(self, key: int) -> int:
        return list(self._trials).index(key)

    def rank_of(self, key: int) -> int:
        return 0

    def steps_of(self, key: int) -> int:
        return self._trials[key][2]


def open_run(
    path: Path, specs: Sequence[TrialSpec], *, clock: ManualClock, options: RunOptions | None = None
) -> OpenRun:
    """A run that has begun, without a first checkpoint."""
    directory = RunDirectory.create(path)
    store = RunStore.create(directory.database, clock=clock)
    store.add_trials(
        [TrialRecord(trial_id=spec.trial_id, parameters={}, planned_steps=spec.num_steps, seed=0) for spec in specs]
    )
    return OpenRun(
        directory=directory,
        store=store,
        state_store=TrialStateStore(directory, memory_budget_bytes=1 << 20),
        clock=clock,
        watcher=Notes(),
        options=options or RunOptions(),
    )


class Task:
    """A supervisor of trials that are evaluated after each ``every`` steps, with losses by trial id, and its run."""

    def __init__(
        self,
        path: Path,
        executor: FakeExecutor,
        specs: Sequence[TrialSpec],
        *,
        clock: ManualClock,
        every: int = 2,
        place: int = 0,
        priority: int = 0,
        early_exit: EarlyExitSettings | None = None,
        options: RunOptions | None = None,
    ) -> None:
        self.run = open_run(path, specs, clock=clock, options=options)
        self.specs = {spec.trial_id: spec for spec in specs}
        self.study = Study(
            [
                Candidate(
                    trial_id=spec.trial_id,
                    planned_steps=spec.num_steps,
                    warmup_steps=every,
                    evaluation_steps=tuple(range(every, spec.num_steps + 1, every)),
                )
                for spec in specs
            ],
            early_exit or EarlyExitSettings(rule="none"),
        )
        self.ticks: list[tuple[list[TrialEvent], list[Decision]]] = []
        self.evaluated: list[dict[int, int]] = []
        fake: Any = executor
        self.supervisor = Supervisor(
            self.run,
            study=self.study,
            share=ExecutorShare(fake, rows=None, place=place),  # type: ignore[arg-type]
            specs=self.specs,
            evaluate=self._evaluate,
            traits=TaskTraits(mean_length=10.0, priority=priority, arrival=place, are_trials_complete=lambda: True),
            on_tick=lambda events, decisions: self.ticks.append((list(events), list(decisions))),
        )

    @property
    def notes(self) -> list[str]:
        assert isinstance(self.run.watcher, Notes)
        return self.run.watcher.notes

    def _evaluate(self, steps: Mapping[int, int]) -> list[Evaluated]:
        self.evaluated.append(dict(steps))
        return [
            Evaluated(trial_id=trial_id, step=step, validation_loss=float(np.float32(1 + trial_id)), num_tokens=5)
            for trial_id, step in steps.items()
        ]


class AheadExecutor(FakeExecutor, LocalExecutor):  # type: ignore[misc]
    """Says in which order steps are launched and read; a trial's loss at a step may be given."""

    launches_ahead = True

    def __init__(self, clock: ManualClock) -> None:
        FakeExecutor.__init__(self, clock)
        self.order: list[str] = []
        self.expected: list[list[list[int]]] = []
        self.losses: dict[tuple[int, int], float] = {}

    def expect_evaluation(self, groups: Any) -> None:
        self.expected.append([list(group) for group in groups])

    def launch_step(self, trial_ids: Any = None) -> Any:
        number = 1 + sum(entry.startswith("launch") for entry in self.order)
        events = self.step(self.resident)
        self.order.append(f"launch {number}")

        def read() -> tuple[StepDone, ...]:
            self.order.append(f"read {number}")
            return tuple(
                replace(event, loss=self.losses.get((event.trial_id, event.step), event.loss)) for event in events
            )

        return SimpleNamespace(events=read)
