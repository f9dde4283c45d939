"""Watches a run's passes: predicted against observed peaks, what ran out of memory, and what follows from both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from cohort.core.clock import Clock
from cohort.core.memory_records import MemoryShortage, PassKind, PassPeak
from cohort.core.units import format_bytes
from cohort.engine.memory.peak_record import PeakRecord
from cohort.engine.memory.plan import MemoryPlan
from cohort.runs.facts import PassFacts
from cohort.training.executor import Executor

__all__ = ["MemoryWatch"]

# passes between two fits, and seconds between two records
_REFIT_AT = 32
_RECORD_SECONDS = 60.0


class MemoryWatch:
    """Takes what an executor observed, records it, and lowers budgets that no longer fit by the corrected model.

    None of it changes a number: a micro-batch's size never does.
    """

    def __init__(
        self,
        executor: Executor,
        plan: MemoryPlan,
        *,
        before: PassFacts,
        record: Callable[[PassFacts], None],
        note: Callable[[str], None],
        clock: Clock,
    ) -> None:
        """Go on from ``before``: budgets that were lowered before a stop stay so, and peaks are counted on.

        Args:
            executor: Observes.
            plan: What was predicted.
            before: What the run record says of earlier passes.
            record: Writes to the run record what it is to say from now on.
            note: Told, in a line each, of what ran out of memory.
            clock: For the time between records.
        """
        self._executor, self._plan, self._record, self._note, self._clock = executor, plan, record, note, clock
        self._model = None if plan.profile is None else plan.profile.model
        self._peaks = PeakRecord.of(before)
        self._unseen: list[PassPeak] = []
        self._num_shortages = before.num_shortages or 0
        self._recomputed_before = before.num_recomputed or 0
        self._kept_after_shortage = before.kept_tokens_after_shortage
        if self._kept_after_shortage is not None:
            executor.gradient_checkpointing.lower(self._kept_after_shortage)
        self._recorded_at = clock.monotonic()
        executor.lower_token_budgets(before.token_budgets or {})

    def took(self) -> None:
        """Take what was observed since the last call."""
        for peak in self._executor.memory.take_peaks():
            if self._model is not None:
                # what was never measured before is learnt from, and no prediction to be judged
                if not peak.size.recomputed or self._model.knows(peak.kind, recomputed=True):
                    self._peaks.add(peak, predicted=self._model.predict(peak.kind, peak.size))
                self._unseen.append(peak)
        shortages = self._executor.take_shortages()
        for shortage in shortages:
            self._learn(shortage)
        if len(self._unseen) >= _REFIT_AT:
            self._refit()
        if shortages or (self._peaks.num_passes and self._clock.monotonic() - self._recorded_at >= _RECORD_SECONDS):
            self.record()

    def record(self) -> None:
        """Bring the run record up to date."""
        self._recorded_at = self._clock.monotonic()
        policy = self._executor.gradient_checkpointing
        self._record(
            replace(
                self._peaks.facts(),
                token_budgets=dict(self._executor.token_budgets),
                kept_tokens_after_shortage=self._kept_after_shortage,
                recomputed_above_tokens=policy.keep_tokens,
                num_shortages=self._num_shortages,
                num_recomputed=self._recomputed_before + policy.num_passes,
            )
        )

    def _learn(self, shortage: MemoryShortage) -> None:
        self._num_shortages += 1
        self._plan.forget_profile()
        again = f"in micro-batches of at most {shortage.budget_after:,}, which"
        if shortage.keep_tokens is not None:
            self._kept_after_shortage = shortage.keep_tokens
            again = "with its layers recomputed, as all so large from now on: half as long again, but it"
        self._note(
            f"warning: out of memory in a {shortage.kind.value} pass of {shortage.num_tokens:,} tokens; done again "
            f"{again} changes no result ({' '.join(shortage.message.split())[:120]})"
        )
        profile, room = self._plan.profile, self._room()
        if self._model is not None and profile is not None and room is not None:
            size = profile.worst(shortage.num_tokens, recomputed=shortage.was_recomputed)
            self._model = self._model.corrected(shortage.kind, size, at_least=room)

    def _refit(self) -> None:
        """Fit again with what was seen, and lower the budget of training where that says it does not fit."""
        profile, room = self._plan.profile, self._room()
        assert self._model is not None, "what is unseen was predicted"
        self._model = self._model.refitted(self._unseen)
        self._unseen.clear()
        if profile is None or room is None:
            return
        budget = self._executor.token_budgets[PassKind.TRAIN]
        model = self._model

        def predicted(tokens: int) -> float:
            recomputed = self._executor.gradient_checkpointing.is_for(tokens)
            return model.predict(PassKind.TRAIN, profile.worst(tokens, recomputed=recomputed))

        if predicted(budget) > room:
            fits = budget
            while fits > profile.longest and predicted(fits) > room:
                fits = max(profile.longest, fits // 2)
            if fits < budget:
                self._executor.lower_token_budgets({PassKind.TRAIN: fits})
                self._note(
                    f"passes take more memory than was measured: micro-batches of at most {fits:,} tokens from now on, "
                    f"for {format_bytes(room)}; no result changes"
                )

    def _room(self) -> float | None:
        """Return the bytes for a pass beside base model and bank; None where nothing limits it."""
        if self._plan.needs is None:
            return None
        if self._executor.memory.device.type == "cuda":
            device = self._executor.memory.device
            reserved, allocated = torch.cuda.memory_reserved(device), torch.cuda.memory_allocated(device)
            total = torch.cuda.get_device_properties(device).total_memory
            free = torch.cuda.mem_get_info(device)[0]
            within = total if self._plan.limit_bytes is None else self._plan.limit_bytes
            return float(min(free + reserved, within) - allocated)
        return float(self._plan.machine.memory_bytes - self._executor.bank.num_bytes)
