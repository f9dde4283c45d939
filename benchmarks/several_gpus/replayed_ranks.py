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
from cohort.ranks.calls import Call
from cohort.ranks.grouped_executor import GroupedExecutor
from cohort.ranks.replicated_executor import ReplicatedExecutor
from cohort.ranks.step_window import StepWindow
from cohort.ranks.training_executor import TrainingExecutor
from cohort.training.evaluation_loss import EvaluationLoss
from cohort.training.trial import TrialSpec, TrialState

__all__ = ["ReplayedRanks"]

SAY_SECONDS = 5.0


class ReplayedRanks:
    """An executor over several ranks; adds up what moving states and recording graphs takes on all of them.

    Attributes:
        own: The executor that trains. What is not here is its.
        first: The first rank, where it is this process; None where all ranks are processes of their own.
        curves: The losses that are reported; None for the real ones.
        state_seconds: Of new adapters, and of states and best checkpoints that came and went.
        trained_tokens, evaluated_tokens: Until now.
        moves: How often, and for how many seconds, states came and went, by what was asked for.
        windows: Of each window of steps: rounds, tokens of each rank, seconds of each rank. Ranks that hold the model
            together have their tokens together.
    """

    def __init__(self, own: ReplicatedExecutor | GroupedExecutor, *, first: TimedExecutor | None) -> None:
        self.own, self.first = own, first
        self.curves: Losses | None = None
        self.num_steps: dict[int, int] = {}
        self.clear()

    def __getattr__(self, name: str) -> Any:
        """Return what the executor has."""
        return getattr(self.own, name)

    def clear(self) -> None:
        """Begin to add up again."""
        self.state_seconds, self.trained_tokens, self.evaluated_tokens = 0.0, 0, 0
        self.windows: list[tuple[int, list[int], list[float]]] = []
        self.moves: dict[str, tuple[int, float]] = {}
        self._said = time.perf_counter()

    @property
    def capture_seconds(self) -> float:
        """Seconds in which rank 0 recorded graphs; the others record theirs at the same time."""
        return self.passes[0].capture_seconds

    @property
    def passes(self) -> list[RankPasses]:
        """What each rank has recorded and replayed so far."""
        if isinstance(self.own, GroupedExecutor):
            found: list[RankPasses] = self.own._ranks.ask(ReportPasses())
            return found
        return self.own._ranks.ask_all(ReportPasses())

    def fits_on(self, rank: int, spec: TrialSpec) -> bool:
        """Return whether a rank, or all of a group, has room for a trial."""
        if isinstance(self.own, GroupedExecutor):
            return self.own.fits(spec)
        return bool(self.own._ranks.ask(rank, Call.of(TrainingExecutor.fits, spec)))

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
        with self._timed("load"):
            return self.own.load(spec, state, rows=rows, rank=rank)

    def unload(self, trial_id: int, *, on_device: bool = False) -> TrialState:
        """As the executor's."""
        with self._timed("unload"):
            return self.own.unload(trial_id, on_device=on_device)

    def weights(self, trial_id: int, *, on_device: bool = False) -> Tensor:
        """As the executor's."""
        with self._timed("weights"):
            return self.own.weights(trial_id, on_device=on_device)

    def step(self, trial_ids: Sequence[int] | None = None) -> tuple[StepDone, ...]:
        """As the executor's, with the losses of the curves."""
        before = self.own.work
        events = self.own.step(trial_ids)
        self._note_window([events], before)
        return self._replayed(events)

    def run(self, quotas: Mapping[int, int]) -> StepWindow:
        """As the executor's, with the losses of the curves."""
        before = self.own.work
        window = self.own.run(quotas)
        self._note_window(window.rounds, before)
        return replace(window, rounds=tuple(self._replayed(events) for events in window.rounds))

    def evaluate(self, trial_ids: Sequence[int], **asked: Any) -> dict[int, EvaluationLoss]:
        """As the executor's."""
        found = self.own.evaluate(trial_ids, **asked)
        self.evaluated_tokens += sum(each.num_tokens for each in found.values())
        return found

    def _note_window(self, rounds: Sequence[Sequence[StepDone]], before: Sequence[RankWork]) -> None:
        tokens = sum(event.num_tokens for events in rounds for event in events)
        self.trained_tokens += tokens
        since = [now.since(then) for now, then in zip(self.own.work, before, strict=True)]
        of_ranks = [tokens] if isinstance(self.own, GroupedExecutor) else [each.num_tokens for each in since]
        self.windows.append((len(rounds), of_ranks, [round(each.train_seconds, 4) for each in since]))
        self._say(time.perf_counter())

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
    def _timed(self, what: str) -> Iterator[None]:
        begun = time.perf_counter()
        yield
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        now = time.perf_counter()
        self.state_seconds += now - begun
        count, seconds = self.moves.get(what, (0, 0.0))
        self.moves[what] = count + 1, round(seconds + now - begun, 3)
        self._say(now)

    def _say(self, now: float) -> None:
        """Print from time to time how far the sweep is, so that one that is stopped says where its time went."""
        if now - self._said > SAY_SECONDS:
            self._said = now
            seconds = round(sum(max(each) for _, _, each in self.windows), 1)
            print(f"{len(self.windows)} windows in {seconds} s, {self.trained_tokens} tokens; {self.moves}", flush=True)
