"""Validation losses of an executor's trials, and of the frozen model: asked for now, or launched before that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cohort.data.tokenised import TokenisedRows
from cohort.training.evaluation_ahead import EvaluationAhead, EvaluationInputs
from cohort.training.evaluation_loss import (
    BASE_SLOT,
    EvaluationLoss,
    LaunchedEvaluation,
    launch_evaluation,
    trial_losses,
)
from cohort.training.micro_batches import MicroBatches, RowsTooLarge
from cohort.training.objectives.objective import Objective
from cohort.training.passes import MeasuringPasses
from cohort.training.step_samples import Resident

__all__ = ["ResidentEvaluation"]


class ResidentEvaluation:
    """Evaluates the residents of one executor.

    Attributes:
        ahead: What is launched before it is asked for.
    """

    def __init__(
        self,
        passes: MeasuringPasses,
        *,
        micro_batches: MicroBatches,
        residents: Mapping[int, Resident],
        too_large: RowsTooLarge,
        is_ahead: bool,
    ) -> None:
        """Evaluate with ``passes``.

        Args:
            residents: By trial id; may change.
            is_ahead: Whether evaluations that are expected follow a step at once.
        """
        self._passes, self._micro_batches = passes, micro_batches
        self._residents, self._too_large = residents, too_large
        self.ahead = EvaluationAhead(is_used=is_ahead)

    def of_trials(
        self,
        trial_ids: Sequence[int],
        *,
        rows: TokenisedRows,
        row_ids: Sequence[int],
        objective: Objective | None,
    ) -> dict[int, EvaluationLoss]:
        """Return the losses of trials, packed, by trial id; None takes each trial's own objective."""
        what = EvaluationInputs(rows=rows, row_ids=tuple(row_ids), objective=objective)
        launched = self.ahead.take({trial_id: self._residents[trial_id] for trial_id in trial_ids}, what)
        return trial_losses(
            self._residents,
            trial_ids,
            objective=objective,
            losses_of=lambda objectives: (launched or self.launch(objectives, what)).losses(),
        )

    def of_base(self, *, rows: TokenisedRows, row_ids: Sequence[int], objective: Objective) -> EvaluationLoss:
        """Return the loss of the frozen model."""
        what = EvaluationInputs(rows=rows, row_ids=tuple(row_ids), objective=objective)
        return self.launch({BASE_SLOT: objective}, what).losses()[BASE_SLOT]

    def follow(self, residents: Sequence[Resident]) -> None:
        """Launch what is expected of the trials whose step has just been launched."""
        self.ahead.launch({resident.spec.trial_id: resident for resident in residents}, self.launch)

    def launch(self, objectives: Mapping[int, Objective], what: EvaluationInputs) -> LaunchedEvaluation:
        """Launch the evaluation of each slot of ``objectives``."""
        return launch_evaluation(
            self._passes,
            micro_batches=self._micro_batches,
            objectives=objectives,
            rows=what.rows,
            row_ids=what.row_ids,
            too_large=lambda entry, words: self._too_large.in_evaluation(entry, words, rows=what.rows),
        )
