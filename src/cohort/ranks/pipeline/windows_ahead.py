"""Windows of a pipeline that are solved one ahead, in a process of their own, while the stages train.

The process that commands the stages keeps what they know of the resident trials, guesses the steps of the next window
before the present one runs, and asks for its schedule. Where the guess was right and the schedule is there in time,
every stage gets it; else each plans the window greedily by itself, all alike.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from cohort.core.process.cores import num_cores
from cohort.data.tokenised import TokenisedRows
from cohort.models.config import DecoderConfig
from cohort.ranks.pipeline.window_plan import flat_tokens, window_question
from cohort.ranks.rank_group import PipelineGroup
from cohort.scheduling.pipelines.solver_process import SolverProcess
from cohort.scheduling.pipelines.window_packing import WindowQuestion, WindowSchedule, greedy_schedule
from cohort.scheduling.solver import has_solver
from cohort.training.step_samples import Resident
from cohort.training.trial import TrialSpec

__all__ = ["WindowsAhead", "windows_ahead"]

# a schedule that is predicted to save less is not worth a call of every stage
LEAST_GAIN = 0.01
# who asks for the solver gets its windows, also where training is faster than solving
PATIENCE_SECONDS = 10.0


def windows_ahead(
    group: object,
    *,
    microbatches: str,
    train_rows: TokenisedRows,
    device_type: str,
    config: Callable[[], DecoderConfig],
) -> WindowsAhead | None:
    """Return what plans the windows of a group ahead; None where its stages plan them, or it is no pipeline.

    Args:
        microbatches: ``auto``, ``greedy`` or ``solver``. ``auto`` wants a CPU core beyond those of the stages.
        config: Returns that of the model.
    """
    if microbatches == "greedy" or not isinstance(group, PipelineGroup) or not has_solver():
        return None
    if microbatches == "auto" and num_cores() <= group.size:
        return None
    return WindowsAhead(
        group,
        train_rows=train_rows,
        device_type=device_type,
        flat_tokens=flat_tokens(config(), device_type=device_type),
        least_gain=LEAST_GAIN if microbatches == "auto" else 0.0,
        patience_seconds=0.0 if microbatches == "auto" else PATIENCE_SECONDS,
    )


class WindowsAhead:
    """Plans the windows of one pipeline ahead.

    Attributes:
        counts: Windows so far by what planned them: ``solver``, and for those that were planned greedily why:
            ``greedy is as good``, ``not solved in time``, ``other steps than expected``, ``first``.
    """

    def __init__(
        self,
        group: PipelineGroup,
        *,
        train_rows: TokenisedRows,
        device_type: str,
        flat_tokens: int,
        least_gain: float = LEAST_GAIN,
        patience_seconds: float = 0.0,
        start: Callable[[], SolverProcess] = SolverProcess,
    ) -> None:
        """Start the process that solves.

        Args:
            train_rows: Of trials that are loaded without rows of their own.
            device_type, flat_tokens: Of the stages, as they plan with.
            least_gain: Share of a window that a schedule must be predicted to save; 0 takes any.
            patience_seconds: How long a window waits for its schedule.
        """
        self._group, self._rows, self._device_type, self._flat_tokens = group, train_rows, device_type, flat_tokens
        self._least_gain, self._patience = least_gain, patience_seconds
        self._residents: dict[int, Resident] = {}
        self._solver: SolverProcess | None = start()
        self._found: tuple[WindowQuestion, WindowSchedule] | None = None
        self.counts: Counter[str] = Counter()

    def load(self, spec: TrialSpec, *, slot: int, step: int, rows: TokenisedRows | None) -> None:
        """Take in a trial that became resident."""
        own = self._rows if rows is None else rows
        num_samples = len(own) // spec.objective.group_size
        self._residents[spec.trial_id] = Resident(
            spec=spec, slot=slot, step=step, order=spec.order(num_samples), rows=own
        )

    def keep(self, resident: Collection[int]) -> None:
        """Forget trials that have left."""
        self._residents = {trial_id: own for trial_id, own in self._residents.items() if trial_id in resident}

    def take(self, quotas: Mapping[int, int], steps: Mapping[int, int], *, token_budget: int) -> WindowSchedule | None:
        """Return the schedule of the window that comes now; None where the stages plan it themselves.

        Args:
            quotas: The steps of each trial in it.
            steps: Those that each resident has done.
        """
        self._collect(self._patience)
        found, self._found = self._found, None
        if found is None:
            has_asked = self._solver is not None and self._solver.is_busy
            self.counts["not solved in time" if has_asked else "first"] += 1
            return None
        asked, schedule = found
        if asked != self._question(quotas, steps, token_budget=token_budget):
            self.counts["other steps than expected"] += 1
            return None
        if schedule.seconds > (1 - self._least_gain) * greedy_schedule(asked).seconds:
            self.counts["greedy is as good"] += 1
            return None
        self.counts["solver"] += 1
        return schedule

    def expect(self, quotas: Mapping[int, int], steps: Mapping[int, int], *, token_budget: int) -> None:
        """Begin to solve the window after the one that runs next, unless the one before is still being solved.

        Args:
            quotas: Its steps, as they are expected.
            steps: Those that each resident will have done by then.
        """
        self._collect()
        if self._solver is None or self._solver.is_busy or not any(quotas.values()):
            return
        question = self._question(quotas, steps, token_budget=token_budget)
        try:
            self._solver.ask(question)
        except OSError:
            self._give_up()

    def close(self) -> None:
        """End the process."""
        if self._solver is not None:
            self._solver.close()
            self._solver = None

    def _collect(self, patience_seconds: float = 0.0) -> None:
        if self._solver is None:
            return
        try:
            self._found = self._solver.answer(patience_seconds) or self._found
        except EOFError:
            self._give_up()

    def _give_up(self) -> None:
        """Go on without the process, which died: windows are planned greedily."""
        with contextlib.suppress(OSError):
            self.close()
        self._solver = None

    def _question(self, quotas: Mapping[int, int], steps: Mapping[int, int], *, token_budget: int) -> WindowQuestion:
        residents = sorted(self._residents.values(), key=lambda resident: resident.slot)
        return window_question(
            [
                replace(resident, step=steps[resident.spec.trial_id])
                for resident in residents
                if quotas.get(resident.spec.trial_id, 0) > 0
            ],
            quotas,
            token_budget=token_budget,
            group=self._group,
            device_type=self._device_type,
            flat_tokens=self._flat_tokens,
        )
