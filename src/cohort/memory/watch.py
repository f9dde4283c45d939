"""Watches the passes of a run: records observed peaks, learns from them, and lowers budgets that do not fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch

from cohort.core.clock import Clock
from cohort.core.memory_records import MemoryShortage, ObservedPass, PassKind, PassPeak
from cohort.core.units import format_bytes
from cohort.memory.plan import MemoryPlan
from cohort.ranks.training_executor import TrainingExecutor
from cohort.runs.fact_groups import PassFacts

__all__ = ["MemoryWatch", "PeakRecord"]

# passes between two fits, and seconds between two records
_REFIT_AT = 32
_RECORD_SECONDS = 60.0
# of the largest passes in the run record
_MOST_SHOWN = 20


@dataclass(kw_only=True)
class PeakRecord:
    """Predicted against observed peaks of all passes of a run, over all its processes; only the largest are kept.

    Attributes:
        num_passes: Passes whose peak was observed.
        error_sum: The sum of their prediction errors, each as a share of what was observed.
        largest: The passes that took most, largest first, as the run record shows them.
    """

    num_passes: int = 0
    error_sum: float = 0.0
    largest: list[ObservedPass] = field(default_factory=list)

    @classmethod
    def of(cls, facts: PassFacts) -> PeakRecord:
        """Return the record that an earlier process of the run left; an empty one where there was none."""
        count, error = facts.num_observed, facts.error_percent
        if count is None or error is None:
            return cls()
        return cls(num_passes=count, error_sum=count * error / 100, largest=list(facts.largest or ()))

    def add(self, peak: PassPeak, *, predicted: float) -> None:
        """Take in a pass and the bytes that were predicted before it ran."""
        self.num_passes += 1
        self.error_sum += abs(predicted - peak.num_bytes) / max(1, peak.num_bytes)
        entry = ObservedPass(
            kind=peak.kind, rows=peak.size.num_rows, predicted_bytes=round(predicted), observed_bytes=peak.num_bytes
        )
        self.largest = sorted([*self.largest, entry], key=lambda shown: -shown.observed_bytes)
        del self.largest[_MOST_SHOWN:]

    def facts(self) -> PassFacts:
        if not self.largest:
            return PassFacts()
        return PassFacts(
            num_observed=self.num_passes,
            error_percent=100 * self.error_sum / self.num_passes,
            predicted_bytes=self.largest[0].predicted_bytes,
            observed_bytes=self.largest[0].observed_bytes,
            largest=tuple(self.largest),
        )


class MemoryWatch:
    """Takes what an executor observed, records it, and lowers budgets that no longer fit by the corrected model.

    No result changes, since the size of a micro-batch changes no number.
    """

    def __init__(
        self,
        executor: TrainingExecutor,
        plan: MemoryPlan,
        *,
        before: PassFacts,
        record: Callable[[PassFacts], None],
        note: Callable[[str], None],
        clock: Clock,
    ) -> None:
        """Go on from ``before``: lowered budgets stay lowered, and peaks are counted on.

        Args:
            before: The run record's facts about earlier passes.
            record: Replaces those facts.
            note: Shows a line about a pass that ran out of memory.
        """
        self._executor, self._plan, self._record, self._note, self._clock = executor, plan, record, note, clock
        self._model = None if plan.profile is None else plan.profile.model
        self._peaks = PeakRecord.of(before)
        self._unseen: list[PassPeak] = []
        self._num_shortages = before.num_shortages or 0
        self._recomputed_before = before.num_recomputed or 0
        self._kept_after_shortage = before.kept_tokens_after_shortage
        if self._kept_after_shortage is not None:
            executor.lower_kept_tokens(self._kept_after_shortage)
        self._recorded_at = clock.monotonic()
        # what did not fit an earlier process of the run would fail again
        executor.lower_token_budgets(before.token_budgets or {})

    def took(self) -> None:
        """Take in the passes since the last call."""
        for peak in self._executor.memory.take_peaks():
            if self._model is not None:
                # before the first recomputed pass was seen, what the model says of one is no prediction to be judged
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
        self._recorded_at = self._clock.monotonic()
        policy = self._executor.gradient_checkpointing
        self._record(
            replace(
                self._peaks.facts(),
                token_budgets=dict(self._executor.token_budgets),
                kept_tokens_after_shortage=self._kept_after_shortage,
                recomputed_above_tokens=policy.keep_tokens,
                num_shortages=self._num_shortages,
                num_recomputed=self._recomputed_before + self._executor.num_recomputed,
            )
        )

    def _learn(self, shortage: MemoryShortage) -> None:
        self._num_shortages += 1
        # the profile said that this pass fits: the next run must measure again
        self._plan.forget_profile()
        again = f"repeated in micro-batches of at most {shortage.budget_after:,} tokens"
        if shortage.keep_tokens is not None:
            self._kept_after_shortage = shortage.keep_tokens
            again = "all passes this large now use gradient checkpointing (about 50 % slower)"
        self._note(
            f"warning: out of memory in a {shortage.kind.value} pass of {shortage.num_tokens:,} tokens; "
            f"{again}; no result changes ({' '.join(shortage.message.split())[:120]})"
        )
        profile = self._plan.profile
        if self._model is not None and profile is not None and (room := self._room()) is not None:
            size = profile.worst(shortage.num_tokens, recomputed=shortage.was_recomputed)
            self._model = self._model.corrected(shortage.kind, size, at_least=room)

    def _refit(self) -> None:
        """Fit again with the new passes, and lower the budget of training where the fit says it is too large."""
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
            # the longest row must stay in one pass
            fits = budget
            while fits > profile.longest_group and predicted(fits) > room:
                fits = max(profile.longest_group, fits // 2)
            if fits < budget:
                self._executor.lower_token_budgets({PassKind.TRAIN: fits})
                self._note(
                    f"passes take more memory than was measured: micro-batches have at most {fits:,} tokens from now "
                    f"on, to fit in {format_bytes(room)}; no result changes"
                )

    def _room(self) -> float | None:
        """Return the bytes that base model and bank leave for a pass; None where nothing limits it."""
        if self._plan.needs is None:
            return None
        if self._executor.memory.device.type == "cuda":
            device = self._executor.memory.device
            reserved, allocated = torch.cuda.memory_reserved(device), torch.cuda.memory_allocated(device)
            total = torch.cuda.get_device_properties(device).total_memory
            free = torch.cuda.mem_get_info(device)[0]
            # what the allocator has reserved and not given out is free for a pass as well
            within = total if self._plan.limit_bytes is None else self._plan.limit_bytes
            return float(min(free + reserved, within) - allocated)
        return float(self._plan.machine.memory_bytes - self._executor.bank_bytes)
