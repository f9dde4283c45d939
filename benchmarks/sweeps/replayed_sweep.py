"""A sweep that really trains while its losses are read from recorded curves: the product's own loop, timed in parts."""

from __future__ import annotations

import contextlib
import gzip
import json
import math
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.sweeps.sweep_grid import PlannedGridTrial
from cohort.checkpoints.trial_states import TrialStateStore
from cohort.core.clock import SystemClock
from cohort.core.events import Evaluated, StepDone
from cohort.data.tokenised import TokenisedRows
from cohort.engine.train.executor_share import ExecutorShare
from cohort.engine.train.open_run import OpenRun, RunOptions
from cohort.engine.train.session import Session
from cohort.engine.train.supervisor import Supervisor, TaskTraits
from cohort.memory.sizes import Sizes
from cohort.parallel.rank_executor import RankExecutor
from cohort.runs.directory import RunDirectory
from cohort.runs.records import NewTrial
from cohort.runs.store import RunStore
from cohort.training.evaluation_loss import EvaluationLoss
from cohort.training.trial import TrialSpec, TrialState
from cohort.tuning import EarlyExitSettings, RecordedCurve, ReplayReport, Study, replay_curves

__all__ = ["Curves", "TimedExecutor", "predicted", "run_sweep"]

PER_TRIAL_PARTS = ("new adapters", "states in", "states out", "best checkpoints", "states moved to the host")


class Curves:
    """Smoothed train and validation losses by share of the planned training, for each trial of the grid."""

    def __init__(self, path: Path) -> None:
        content = json.loads(gzip.decompress(path.read_bytes()))
        self.source = {key: value for key, value in content.items() if key != "trials"}
        self._points = {
            trial["trial_id"]: np.array([[0.0, 0.0, 0.0], *trial["points"]]) / [trial["planned_steps"], 1, 1]
            for trial in content["trials"]
        }
        for points in self._points.values():
            points[0, 1:] = points[1, 1:]  # before the first evaluation: as at the first

    def at(self, trial_id: int, share: float) -> tuple[float, float]:
        """Return the (train, validation) loss after ``share`` of the planned steps, between points on a line."""
        points = self._points[trial_id]
        train, validation = (float(np.interp(share, points[:, 0], points[:, column])) for column in (1, 2))
        return train, validation


def predicted(planned: Sequence[PlannedGridTrial], curves: Curves, settings: EarlyExitSettings) -> ReplayReport:
    """Return what early exit makes of the curves, without training."""
    recorded = []
    for trial in planned:
        steps = range(1, trial.candidate.planned_steps + 1)
        losses = [curves.at(trial.spec.trial_id, step / len(steps)) for step in steps]
        recorded.append(
            RecordedCurve(
                candidate=trial.candidate,
                train_losses=[train for train, _ in losses],
                validation_losses={step: losses[step - 1][1] for step in trial.candidate.evaluation_steps},
                batch_size=trial.spec.batch_size,
            )
        )
    return replay_curves(recorded, settings)


class TimedExecutor(RankExecutor):
    """An executor that adds up where its time goes and reports recorded losses instead of its own."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.seconds: dict[str, float] = defaultdict(float)
        self.counts: dict[str, int] = defaultdict(int)
        self.curves: Curves | None = None
        self.steps: list[tuple[int, int, float]] = []
        self._optimizer_events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    @contextlib.contextmanager
    def _timed(self, part: str) -> Iterator[None]:
        begun = time.perf_counter()
        yield
        if self.bank.weights_RD.is_cuda:
            torch.cuda.synchronize()
        self.seconds[part] += time.perf_counter() - begun
        self.counts[part] += 1

    def step(self, trial_ids: Sequence[int] | None = None) -> tuple[StepDone, ...]:
        """As the executor's, with the losses of the curves."""
        captured_before, seconds_before = self.capture_seconds, self.seconds["training"]
        with self._timed("training"):
            events = super().step(trial_ids)
        self.seconds["training"] -= self.capture_seconds - captured_before
        took = self.seconds["training"] - seconds_before
        self.steps.append((sum(event.num_tokens for event in events), len(events), round(1e3 * took, 2)))
        self.counts["trained_tokens"] += sum(event.num_tokens for event in events)
        if self.curves is None:
            return events
        replayed = []
        for event in events:
            share = event.step / self._residents[event.trial_id].spec.num_steps
            replayed.append(replace(event, loss=self.curves.at(event.trial_id, share)[0]))
        return tuple(replayed)

    def evaluate(
        self, trial_ids: Sequence[int], *, rows: TokenisedRows, row_ids: Sequence[int]
    ) -> dict[int, EvaluationLoss]:
        """As the executor's."""
        captured_before = self.capture_seconds
        with self._timed("evaluation"):
            found = super().evaluate(trial_ids, rows=rows, row_ids=row_ids)
        self.seconds["evaluation"] -= self.capture_seconds - captured_before
        self.counts["evaluated_tokens"] += sum(outcome.num_tokens for outcome in found.values())
        return found

    def load(
        self,
        spec: TrialSpec,
        state: TrialState | None = None,
        *,
        rows: TokenisedRows | None = None,
        rank: int | None = None,
    ) -> int:
        """As the executor's."""
        with self._timed("new adapters" if state is None else "states in"):
            return super().load(spec, state, rows=rows, rank=rank)

    def unload(self, trial_id: int, *, on_device: bool = False) -> TrialState:
        """As the executor's."""
        with self._timed("states out"):
            return super().unload(trial_id, on_device=on_device)

    def weights(self, trial_id: int, *, on_device: bool = False) -> Tensor:
        """As the executor's."""
        with self._timed("best checkpoints"):
            return super().weights(trial_id, on_device=on_device)

    def _update(self, residents: Any) -> Tensor:
        if not self.bank.weights_RD.is_cuda:
            return super()._update(residents)
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before.record()
        norms = super()._update(residents)
        after.record()
        self._optimizer_events.append((before, after))
        return norms

    @property
    def capture_seconds(self) -> float:
        """Seconds of recording graphs so far."""
        return 0.0 if self.captured is None else self.captured.capture_seconds

    def take_times(self) -> dict[str, float]:
        """Return the seconds by part since the last call, and begin again."""
        found = dict(self.seconds)
        found["optimizer (within training)"] = sum(a.elapsed_time(b) for a, b in self._optimizer_events) / 1e3
        self.seconds.clear()
        self._optimizer_events.clear()
        return found


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

    def checkpoint(self) -> None:
        """Save nothing."""


@dataclass(frozen=True, kw_only=True)
class SweepTimes:
    """What a sweep took.

    Attributes:
        seconds: Wall time of the loop, without the next two.
        state_seconds: New adapters, and states and best checkpoints moved: per trial, whatever the rows.
        capture_seconds: Recording of graphs: per shape, whatever the rows.
        parts: Seconds by part; ``host`` is what is left: decisions, records, admission.
        saved_share: Share of the full grid's examples that were not trained on.
        trained_tokens, evaluated_tokens: Of the whole sweep.
        passes, replayed_passes: Steps of the executor; passes that were graph replays.
        steps: Tokens, trials and milliseconds of each step, recording of graphs left out.
    """

    seconds: float
    state_seconds: float
    capture_seconds: float
    parts: Mapping[str, float]
    saved_share: float
    trained_tokens: int
    evaluated_tokens: int
    passes: int
    replayed_passes: int
    steps: list[tuple[int, int, float]]


def _replaying(
    executor: TimedExecutor, study: Study, *, curves: Curves, rows: TokenisedRows, num_rows: int
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


def run_sweep(
    executor: TimedExecutor,
    planned: Sequence[PlannedGridTrial],
    *,
    curves: Curves,
    early_exit: EarlyExitSettings,
    sizes: Sizes,
    validation: TokenisedRows,
    num_evaluation_rows: int,
    host_memory_bytes: int = 100 << 30,
    say: Callable[[str], None] = lambda _: None,
) -> SweepTimes:
    """Train, park, select and continue all trials as a run does; return what it took."""
    study = Study([trial.candidate for trial in planned], early_exit)
    executor.curves = curves
    clock, mean_length = SystemClock(), float(executor.train_rows.lengths.mean())
    with tempfile.TemporaryDirectory() as folder:
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
            share=ExecutorShare(executor, rows=executor.train_rows),
            specs={trial.spec.trial_id: trial.spec for trial in planned},
            evaluate=_replaying(executor, study, curves=curves, rows=validation, num_rows=num_evaluation_rows),
            traits=TaskTraits(mean_length=mean_length),
        )
        session = Session(executor, capacity=sizes.capacity, clock=clock, stop_requested=lambda: False)
        session.join(supervisor)
        captured_before, replays_before = _cleared(executor)
        begun = time.perf_counter()
        session.run()
        total = time.perf_counter() - begun
        store.close()
    capture_seconds = executor.capture_seconds - captured_before
    parts = executor.take_times()
    parts["states moved to the host"] = state_store.seconds
    accounted = sum(seconds for part, seconds in parts.items() if "within" not in part)
    parts["host: decisions, records, admission"] = total - capture_seconds - accounted
    say(f"{total:.1f} s, {capture_seconds:.1f} s of them recording graphs; {json.dumps(parts)}")
    state_seconds = sum(parts.get(part, 0.0) for part in PER_TRIAL_PARTS)
    return SweepTimes(
        seconds=total - capture_seconds - state_seconds,
        state_seconds=state_seconds,
        capture_seconds=capture_seconds,
        parts=parts,
        saved_share=_saved_share(study, planned),
        trained_tokens=executor.counts["trained_tokens"],
        evaluated_tokens=executor.counts["evaluated_tokens"],
        passes=executor.counts["training"],
        replayed_passes=0 if executor.captured is None else executor.captured.num_replays - replays_before,
        steps=executor.steps,
    )


def _cleared(executor: TimedExecutor) -> tuple[float, int]:
    """Forget the executor's times so far; return its seconds of recording graphs and its replays."""
    executor.take_times()
    executor.counts.clear()
    executor.steps = []
    return executor.capture_seconds, 0 if executor.captured is None else executor.captured.num_replays


def _begun_run(folder: Path, planned: Sequence[PlannedGridTrial]) -> tuple[RunDirectory, RunStore]:
    directory = RunDirectory.create(folder / "run")
    store = RunStore.create(directory.database)
    store.add_trials([_record(trial) for trial in planned])
    return directory, store


def _saved_share(study: Study, planned: Sequence[PlannedGridTrial]) -> float:
    """Return the share of the full grid's examples that were not trained on."""
    used = sum(study.trajectory(trial.spec.trial_id).num_steps * trial.spec.batch_size for trial in planned)
    return 1 - used / sum(trial.candidate.planned_steps * trial.spec.batch_size for trial in planned)


def _record(trial: PlannedGridTrial) -> NewTrial:
    return NewTrial(
        trial_id=trial.spec.trial_id,
        parameters={"learning_rate": trial.learning_rate, "r": trial.spec.adapter.r},
        planned_steps=trial.candidate.planned_steps,
        seed=0,
        planned_tokens=0,
    )
