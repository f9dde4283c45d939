"""The step after the one that the device computes: its samples are drawn and its first pass is sent meanwhile."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence
from dataclasses import replace

from cohort.adapters.bank import AdapterBank
from cohort.training.cuda_graphs.pass_shape import PassShape
from cohort.training.cuda_graphs.upcoming_passes import UpcomingPasses
from cohort.training.gradient_checkpointing import GradientCheckpointingPolicy
from cohort.training.micro_batches import MicroBatches
from cohort.training.passes import Passes, StagedPass
from cohort.training.step_samples import Resident, StepSamples, gather

__all__ = ["StepAhead"]


class StepAhead:
    """What is laid out for the next step of one executor, if anything.

    Attributes:
        is_used: Whether steps are laid out ahead.
    """

    def __init__(
        self, passes: Passes, *, bank: AdapterBank, micro_batches: MicroBatches, policy: GradientCheckpointingPolicy
    ) -> None:
        """Lay out passes over ``bank``, cut by ``micro_batches`` and recomputed where ``policy`` says."""
        self._passes, self._bank, self._micro_batches, self._policy = passes, bank, micro_batches, policy
        # on a CPU the host is the device: there is nothing to be ahead of
        self.is_used = bank.weights_RD.is_cuda
        self._staged: tuple[StepSamples, StagedPass] | None = None
        self._upcoming = UpcomingPasses()
        self._expected: frozenset[int] | None = None

    def expect(self, trial_ids: Collection[int]) -> None:
        """Set which trials the step after the next one will be of; by default those of the next one."""
        self._expected = frozenset(trial_ids)

    def before_next(self, residents: Sequence[Resident], *, among: Sequence[Resident]) -> Sequence[Resident]:
        """Return the trials of the step after that of ``residents``, each as it stands one step before it.

        Args:
            among: All resident trials, in slot order.
        """
        expected, self._expected = self._expected, None
        if expected is None:
            return residents
        stepping = {resident.spec.trial_id for resident in residents}
        return [
            resident if resident.spec.trial_id in stepping else replace(resident, step=resident.step - 1)
            for resident in among
            if resident.spec.trial_id in expected
        ]

    def passes_after(self, residents: Sequence[Resident]) -> Sequence[PassShape]:
        """Return the passes of the steps after the one that ``residents`` are in."""
        return self._upcoming.after(residents, token_budget=self._micro_batches.token_budget)

    def take(self, residents: Sequence[Resident]) -> tuple[StepSamples, StagedPass | None]:
        """Return the samples of the residents' next step, and its first pass if it has been sent."""
        staged, self._staged = self._staged, None
        steps = tuple((resident.spec, resident.slot, resident.step) for resident in residents)
        # another trial came, left or was put back since: the staged step is not the next one
        if staged is None or staged[0].steps != steps:
            return gather(residents), None
        return staged

    def lay_out(self, residents: Sequence[Resident]) -> None:
        """Lay out the step after the one that ``residents`` are in; void where trials come or go before it."""
        if (
            not self.is_used
            or not residents
            or any(resident.step + 1 >= resident.spec.num_steps for resident in residents)
        ):
            return
        # ranks record together, so none of them may hide an error of it
        if self._passes.are_recorded_together:
            return
        # a bad row, or a device without room for a stream, raises again in the step itself
        with contextlib.suppress(Exception):
            samples = gather(residents, ahead=1)
            part = samples.entries[self._micro_batches.split(samples.entries)[0]]
            present = frozenset(entry.slot for entry in part)
            fresh = present if self._bank.writes_gradients else frozenset()
            recomputed = self._policy.recomputes(part)
            staged = self._passes.stage(
                part,
                samples.terms,
                fresh_slots=fresh,
                recomputed=recomputed,
                upcoming=lambda: self.passes_after(residents),
            )
            self._staged = samples, staged
