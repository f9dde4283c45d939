"""Ranks that really train while the losses they report are those of recorded curves, for sweeps that are timed."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from benchmarks.several_gpus.rank_reports import RankPasses, ReportPasses
from benchmarks.sweeps.replayed_run import Losses
from benchmarks.sweeps.replayed_sweep import TimedExecutor
from cohort.core.events import StepDone
from cohort.core.rank_work import RankWork
from cohort.data.tokenised import TokenisedRows
from cohort.parallel.rank_link import RankLink
from cohort.parallel.replicas import ReplicaExecutor
from cohort.parallel.step_window import StepWindow
from cohort.training.evaluation_loss import EvaluationLoss
from cohort.training.trial import TrialSpec, TrialState

__all__ = ["ReplayedRanks"]


class ReplayedRanks(ReplicaExecutor):
    """Adds up what moving states and recording graphs takes on all ranks.

    Attributes:
        first: The first rank.
        curves: The losses that are reported; None for the real ones.
        state_seconds: Of new adapters, and of states and best checkpoints that came and went.
        trained_tokens, evaluated_tokens: Until now.
        windows: Of each window of steps: rounds, tokens of each rank, seconds of each rank.
    """

    def __init__(self, local: TimedExecutor, others: Sequence[RankLink]) -> None:
        """Join the ranks, as :class:`ReplicaExecutor` does."""
        self.first = local
        self.curves: Losses | None = None
        self.num_steps: dict[int, int] = {}
        self.clear()
        super().__init__(local, others)

    def clear(self) -> None:
        """Begin to add up again."""
        self.state_seconds, self.trained_tokens, self.evaluated_tokens = 0.0, 0, 0
        self.windows: list[tuple[int, list[int], list[float]]] = []

    @property
    def capture_seconds(self) -> float:
        """Seconds in which rank 0 recorded graphs; the others record theirs at the same time."""
        return 0.0 if self._local.captured is None else self._local.captured.capture_seconds

    @property
    def passes(self) -> list[RankPasses]:
        """What each rank has recorded and replayed so far."""
        return [RankPasses.of(self._local), *self._others.ask_all(ReportPasses())]

    def load(
        self,
        spec: TrialSpec,
        state: TrialState | None = None,
        *,
        rows: TokenisedRows | None = None,
        rank: int | None = None,
    ) -> int:
        """As the executor's."""
        self.num_steps[spec.trial_id] = spec.num_steps
        with self._timed():
            return super().load(spec, state, rows=rows, rank=rank)

    def unload(self, trial_id: int, *, on_device: bool = False) -> TrialState:
        """As the executor's."""
        with self._timed():
            return super().unload(trial_id, on_device=on_device)

    def weights(self, trial_id: int, *, on_device: bool = False) -> Tensor:
        """As the executor's."""
        with self._timed():
            return super().weights(trial_id, on_device=on_device)

    def step(self, trial_ids: Sequence[int] | None = None) -> tuple[StepDone, ...]:
        """As the executor's, with the losses of the curves."""
        before = self.work
        events = super().step(trial_ids)
        self.trained_tokens += sum(event.num_tokens for event in events)
        self._note_window(1, before)
        return self._replayed(events)

    def run(self, quotas: Mapping[int, int]) -> StepWindow:
        """As the executor's, with the losses of the curves."""
        before = self.work
        window = super().run(quotas)
        self.trained_tokens += sum(event.num_tokens for events in window.rounds for event in events)
        self._note_window(len(window.rounds), before)
        return replace(window, rounds=tuple(self._replayed(events) for events in window.rounds))

    def evaluate(self, trial_ids: Sequence[int], **asked: Any) -> dict[int, EvaluationLoss]:
        """As the executor's."""
        found = super().evaluate(trial_ids, **asked)
        self.evaluated_tokens += sum(each.num_tokens for each in found.values())
        return found

    def _note_window(self, rounds: int, before: Sequence[RankWork]) -> None:
        since = [now.since(then) for now, then in zip(self.work, before, strict=True)]
        self.windows.append(
            (rounds, [each.num_tokens for each in since], [round(each.train_seconds, 4) for each in since])
        )

    def _replayed(self, events: Sequence[StepDone]) -> tuple[StepDone, ...]:
        curves = self.curves
        if curves is None:
            return tuple(events)
        shares = [event.step / self.num_steps[event.trial_id] for event in events]
        return tuple(
            replace(event, loss=curves.at(event.trial_id, share)[0])
            for event, share in zip(events, shares, strict=True)
        )

    @contextlib.contextmanager
    def _timed(self) -> Iterator[None]:
        begun = time.perf_counter()
        yield
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.state_seconds += time.perf_counter() - begun
