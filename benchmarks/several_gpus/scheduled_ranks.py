"""Ranks that train nothing: they keep count of the time that the passes of a sweep would take on each of them.

They stand where a run's executor stands, so admission, windows, early exits and evaluations are the product's own. Rows
of a pass are rounded up as recorded passes are. Recording, loading and moving states take no time here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from benchmarks.sweeps.replayed_run import Losses
from cohort.adapters.adapter_state import AdapterState
from cohort.core.events import StepDone, TrialFailed
from cohort.core.rank_work import RankWork
from cohort.data.order import SampleOrder
from cohort.data.packing import split_micro_batches
from cohort.data.tokenised import TokenisedRows
from cohort.ranks.step_window import StepWindow, joined
from cohort.training.evaluation_loss import EvaluationLoss
from cohort.training.trial import TrialSpec, TrialState

__all__ = ["ScheduledRanks"]

# rows of a recorded pass
ROWS = 128
# an evaluated token has half the products of a trained one
EVALUATION = 0.5


class ScheduledRanks:
    """Answers a run's loop as several ranks would that begin and end each command together.

    Attributes:
        seconds: Until now, of the rank that each command waited for.
        evaluation_seconds: Of them, for evaluations.
        busy: Seconds of each rank.
        trained_tokens, evaluated_tokens, num_windows: Until now.
    """

    work: tuple[RankWork, ...] = ()
    notes: tuple[str, ...] = ()
    num_recomputed = 0

    def __init__(
        self,
        curves: Losses,
        rows: TokenisedRows,
        *,
        num_ranks: int,
        token_budget: int,
        pass_seconds: Callable[[int], float],
    ) -> None:
        """Train nothing on ``rows``, with losses of ``curves``; ``pass_seconds``: of a training pass, by its tokens."""
        self.num_ranks, self._rows, self._curves = num_ranks, rows, curves
        self._token_budget, self._pass_seconds = token_budget, pass_seconds
        self._trials: dict[int, tuple[TrialSpec, SampleOrder]] = {}
        self._steps: dict[int, int] = {}
        self._ranks: dict[int, int] = {}
        self.reliefs: list[Callable[[], bool]] = []
        self.seconds, self.evaluation_seconds, self.busy = 0.0, 0.0, [0.0] * num_ranks
        self.trained_tokens, self.evaluated_tokens, self.num_windows = 0, 0, 0

    @property
    def resident(self) -> tuple[int, ...]:
        return tuple(sorted(self._ranks))

    def fits(self, spec: TrialSpec) -> bool:
        del spec
        return True

    def load(
        self, spec: TrialSpec, state: TrialState | None = None, *, rows: object = None, rank: int | None = None
    ) -> int:
        del rows
        if rank is None:
            loads = [0] * self.num_ranks
            for trial_id, place in self._ranks.items():
                loads[place] += self._trials[trial_id][0].batch_size
            rank = loads.index(min(loads))
        self._trials[spec.trial_id] = (spec, spec.order(len(self._rows)))
        self._ranks[spec.trial_id], self._steps[spec.trial_id] = rank, 0 if state is None else state.step
        return spec.trial_id

    def drop(self, trial_id: int) -> None:
        del self._ranks[trial_id]

    def state(self, trial_id: int, *, on_device: bool = False) -> TrialState:
        del on_device
        return TrialState(adapter=AdapterState(weights=self.weights(trial_id)), step=self._steps[trial_id])

    def unload(self, trial_id: int, *, on_device: bool = False) -> TrialState:
        del on_device
        state = self.state(trial_id)
        self.drop(trial_id)
        return state

    def weights(self, trial_id: int, *, on_device: bool = False) -> Tensor:
        del trial_id, on_device
        return torch.zeros(1, 1)

    def slot_of(self, trial_id: int) -> int:
        return trial_id

    def rank_of(self, trial_id: int) -> int:
        return self._ranks[trial_id]

    def steps_of(self, trial_id: int) -> int:
        return self._steps[trial_id]

    def step(self, trial_ids: Sequence[int] | None = None) -> tuple[StepDone, ...]:
        wanted = self.resident if trial_ids is None else trial_ids
        rounds = self.run(dict.fromkeys(wanted, 1)).rounds
        return rounds[0] if rounds else ()

    def take_failures(self) -> tuple[TrialFailed, ...]:
        return ()

    def expect_window(self, quotas: Mapping[int, int]) -> None:
        """Plan nothing ahead."""

    def run(self, quotas: Mapping[int, int]) -> StepWindow:
        windows, seconds = [], []
        for rank in range(self.num_ranks):
            left = {trial_id: count for trial_id, count in quotas.items() if self._ranks[trial_id] == rank}
            rounds, took = [], 0.0
            while left:
                events, each = self._round(sorted(left))
                rounds.append(events)
                took += each
                left = {trial_id: count - 1 for trial_id, count in left.items() if count > 1}
            windows.append(StepWindow(rounds=tuple(rounds)))
            seconds.append(took)
        self.num_windows += 1
        self._spend(seconds)
        return joined(windows)

    def evaluate(
        self, trial_ids: Sequence[int], *, rows: TokenisedRows, row_ids: Sequence[int]
    ) -> dict[int, EvaluationLoss]:
        tokens = sum(int(rows.lengths[row]) for row in row_ids)
        count = [sum(self._ranks[trial_id] == rank for trial_id in trial_ids) for rank in range(self.num_ranks)]
        seconds = [EVALUATION * self._seconds([tokens] * number) for number in count]
        self.evaluated_tokens += tokens * len(trial_ids)
        self.evaluation_seconds += max(seconds)
        self._spend(seconds)
        return dict.fromkeys(trial_ids, EvaluationLoss(loss=1.0, num_tokens=tokens))

    def close(self) -> None:
        """There is nothing to end."""

    def _round(self, trial_ids: Sequence[int]) -> tuple[tuple[StepDone, ...], float]:
        events: list[StepDone] = []
        lengths: list[int] = []
        for trial_id in trial_ids:
            spec, order = self._trials[trial_id]
            own = [int(self._rows.lengths[row]) for row in order.batch(self._steps[trial_id])]
            self._steps[trial_id] += 1
            step = self._steps[trial_id]
            loss, _ = self._curves.at(trial_id, step / spec.num_steps)
            events.append(
                StepDone(
                    trial_id=trial_id, step=step, loss=loss, grad_norm=1.0, learning_rate=1e-4, num_tokens=sum(own)
                )
            )
            lengths += own
        self.trained_tokens += sum(lengths)
        return tuple(events), self._seconds(lengths)

    def _seconds(self, lengths: Sequence[int]) -> float:
        runs = split_micro_batches(lengths, token_budget=self._token_budget) if lengths else ()
        return sum(self._pass_seconds(-(-sum(lengths[run.start : run.stop]) // ROWS) * ROWS) for run in runs)

    def _spend(self, seconds: Sequence[float]) -> None:
        self.seconds += max(seconds)
        self.busy = [busy + each for busy, each in zip(self.busy, seconds, strict=True)]
