"""A sweep that really trains while its losses are read from recorded curves: the product's own loop, timed in parts."""

from __future__ import annotations

import contextlib
import gzip
import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.sweeps.replayed_run import train_all
from benchmarks.sweeps.sweep_grid import PlannedGridTrial
from cohort.adapters.adapter_state import Moment
from cohort.adapters.bank import AdapterBank
from cohort.core.events import StepDone
from cohort.data.tokenised import TokenisedRows
from cohort.memory.budget import Sizes
from cohort.ranks.local_executor import LocalExecutor
from cohort.training.evaluation_loss import EvaluationLoss
from cohort.training.launched_step import LaunchedStep
from cohort.training.objectives.objective import Objective
from cohort.training.optimizers.optimizer import Optimizer
from cohort.training.step_samples import Resident
from cohort.training.trial import TrialSpec, TrialState
from cohort.tuning import EarlyExitSettings, RecordedCurve, ReplayReport, replay_curves

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


@dataclass(frozen=True, kw_only=True, eq=False)
class _TimedStep(LaunchedStep):
    """A step whose wait counts as training of ``executor``."""

    executor: TimedExecutor
    planned_steps: Mapping[int, int]
    launch_seconds: float

    def events(self) -> tuple[StepDone, ...]:
        """As the step's, with the losses of the curves."""
        return self.executor.read_step(super().events, self)


class TimedExecutor(LocalExecutor):
    """An executor that adds up where its time goes and reports recorded losses instead of its own."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.seconds: dict[str, float] = defaultdict(float)
        self.counts: dict[str, int] = defaultdict(int)
        self.curves: Curves | None = None
        self.steps: list[tuple[int, int, float]] = []
        self.optimizer = self._timed_optimizer = _TimedOptimizer(self.optimizer)

    @contextlib.contextmanager
    def _timed(self, part: str, *, waits: bool = True) -> Iterator[None]:
        begun = time.perf_counter()
        yield
        if waits and self.bank.weights_RD.is_cuda:
            torch.cuda.synchronize()
        self.seconds[part] += time.perf_counter() - begun
        self.counts[part] += 1

    def launch_step(self, trial_ids: Sequence[int] | None = None) -> LaunchedStep:
        """As the executor's, with the losses of the curves."""
        planned = {trial_id: resident.spec.num_steps for trial_id, resident in self._residents.items()}
        captured_before, seconds_before = self.capture_seconds, self.seconds["training"]
        with self._timed("training", waits=False):
            launched = super().launch_step(trial_ids)
        self.seconds["training"] -= self.capture_seconds - captured_before
        return _TimedStep(
            samples=launched.samples,
            numbers=launched.numbers,
            executor=self,
            planned_steps=planned,
            launch_seconds=self.seconds["training"] - seconds_before,
        )

    def read_step(self, read: Callable[[], tuple[StepDone, ...]], step: _TimedStep) -> tuple[StepDone, ...]:
        """Wait for a step by ``read``; its time is that of its launch and that of the wait."""
        seconds_before = self.seconds["training"]
        # it waits for the step itself; an evaluation or a step that follows on the device is no part of it
        with self._timed("training", waits=False):
            events = read()
        took = step.launch_seconds + self.seconds["training"] - seconds_before
        self.counts["training"] -= 1
        self.steps.append((sum(event.num_tokens for event in events), len(events), round(1e3 * took, 2)))
        self.counts["trained_tokens"] += sum(event.num_tokens for event in events)
        if (curves := self.curves) is None:
            return events
        return tuple(
            replace(event, loss=curves.at(event.trial_id, event.step / step.planned_steps[event.trial_id])[0])
            for event in events
        )

    def evaluate(
        self,
        trial_ids: Sequence[int],
        *,
        rows: TokenisedRows,
        row_ids: Sequence[int],
        objective: Objective | None = None,
    ) -> dict[int, EvaluationLoss]:
        """As the executor's."""
        captured_before = self.capture_seconds
        with self._timed("evaluation"):
            found = super().evaluate(trial_ids, rows=rows, row_ids=row_ids, objective=objective)
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

    @property
    def capture_seconds(self) -> float:
        """Seconds of recording graphs so far."""
        return 0.0 if self.captured is None else self.captured.capture_seconds

    def take_times(self) -> dict[str, float]:
        """Return the seconds by part since the last call, and begin again."""
        found = dict(self.seconds)
        found["optimizer (within training)"] = self._timed_optimizer.take_seconds()
        self.seconds.clear()
        return found


class _TimedOptimizer:
    """An optimizer that notes when its launches ran on a GPU."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    @property
    def moments(self) -> tuple[Moment, ...]:
        return self._optimizer.moments

    def update(self, bank: AdapterBank, residents: Sequence[Resident]) -> Tensor:
        if not bank.weights_RD.is_cuda:
            return self._optimizer.update(bank, residents)
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before.record()
        norms = self._optimizer.update(bank, residents)
        after.record()
        self._events.append((before, after))
        return norms

    def take_seconds(self) -> float:
        events, self._events = self._events, []
        return float(sum(before.elapsed_time(after) for before, after in events) / 1e3)


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
    executor.curves = curves
    captured_before, replays_before = _cleared(executor)
    trained = train_all(
        executor,
        planned,
        train_rows=executor.train_rows,
        curves=curves,
        early_exit=early_exit,
        sizes=sizes,
        validation=validation,
        num_evaluation_rows=num_evaluation_rows,
        host_memory_bytes=host_memory_bytes,
    )
    total = trained.seconds
    capture_seconds = executor.capture_seconds - captured_before
    parts = executor.take_times()
    parts["states moved to the host"] = trained.shelf_seconds
    accounted = sum(seconds for part, seconds in parts.items() if "within" not in part)
    parts["host: decisions, records, admission"] = total - capture_seconds - accounted
    say(f"{total:.1f} s, {capture_seconds:.1f} s of them recording graphs; {json.dumps(parts)}")
    state_seconds = sum(parts.get(part, 0.0) for part in PER_TRIAL_PARTS)
    return SweepTimes(
        seconds=total - capture_seconds - state_seconds,
        state_seconds=state_seconds,
        capture_seconds=capture_seconds,
        parts=parts,
        saved_share=trained.saved_share,
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
