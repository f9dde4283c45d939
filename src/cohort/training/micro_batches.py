"""The micro-batches of one kind of pass: as large as the budget allows, smaller after memory has run out.

A row that does not fit even alone is an error that names it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from cohort.core.errors import Problem, SampleTooLargeError
from cohort.core.memory_records import GradientCheckpointing, MemoryShortage, PassKind
from cohort.data.packing import SlotSample, split_micro_batches
from cohort.data.tokenised import Sample, TokenisedRows
from cohort.training.device_memory import DeviceMemory, is_out_of_memory, release_cached
from cohort.training.gradient_checkpointing import GradientCheckpointingPolicy
from cohort.training.group_terms import group_starts
from cohort.training.step_samples import Resident

__all__ = ["MicroBatches", "RowsTooLarge", "sample_too_large"]

T = TypeVar("T")


class MicroBatches:
    """Cuts samples into passes and runs them. A pass that runs out of memory is run again as smaller ones.

    A pass that cannot be cut, or only into uselessly small ones, is recomputed where that is still possible. Neither
    changes a number, so a shortage changes none: the results of a failed attempt are dropped before the next
    (``restart``), and the budget stays lowered, so that the same shortage does not come again at every step.

    Attributes:
        token_budget: Most tokens of a pass; a longer sample stands alone.
    """

    def __init__(
        self,
        kind: PassKind,
        *,
        token_budget: int,
        memory: DeviceMemory,
        reliefs: Sequence[Callable[[], bool]],
        policy: GradientCheckpointingPolicy | None = None,
        repeats_smaller: bool = True,
    ) -> None:
        """Start with ``token_budget``.

        Args:
            reliefs: See :class:`cohort.training.executor.Executor`.
            policy: Which passes are recomputed; None for evaluation, which keeps no activations anyway.
            repeats_smaller: Whether a pass that runs out of memory is run again as smaller ones. A rank that shares its
                passes with others cannot do that alone: there the error is raised.
        """
        self.kind, self.token_budget = kind, token_budget
        self._memory, self._reliefs = memory, reliefs
        self._policy, self._repeats_smaller = policy, repeats_smaller
        self._shortages: list[MemoryShortage] = []

    def take_shortages(self) -> tuple[MemoryShortage, ...]:
        """Return the shortages since the last call."""
        taken = tuple(self._shortages)
        self._shortages.clear()
        return taken

    def split(self, entries: Sequence[SlotSample]) -> list[slice]:
        """Return the micro-batches that ``entries`` are cut into under the present budget, between groups only."""
        lengths = [len(entry.sample.tokens) for entry in entries]
        # the first sample of each group, and the end
        starts = [*group_starts(entries), len(entries)]
        groups = [sum(lengths[first:end]) for first, end in itertools.pairwise(starts)]
        runs = split_micro_batches(groups, token_budget=self.token_budget)
        return [slice(starts[run.start], starts[run.stop]) for run in runs]

    def run(
        self,
        entries: Sequence[SlotSample],
        one_pass: Callable[[Sequence[SlotSample]], T],
        *,
        too_large: Callable[[SlotSample, str], Exception],
        restart: Callable[[], None] | None = None,
    ) -> list[T]:
        """Return what ``one_pass`` returns for each micro-batch, in order.

        Args:
            entries: Samples in the order they are packed in.
            too_large: Makes the error for a sample that does not fit alone, from it and the allocator's words.
            restart: Undoes every pass so far; all of them are then run again. With None a pass leaves nothing behind,
                and only the failed one is run again.

        Raises:
            Exception: that of ``too_large``, or anything from ``one_pass`` that is no shortage of memory.
        """
        done: list[T] = []
        start = 0
        while start < len(entries):
            for run in self.split(entries[start:]):
                part, message = entries[start + run.start : start + run.stop], None
                try:
                    done.append(one_pass(part))
                except Exception as error:
                    if not is_out_of_memory(error) or not self._repeats_smaller:
                        raise
                    message = str(error)
                # not in the handler: the exception holds the frames of the pass and with them what it allocated
                if message is not None:
                    if restart is not None:
                        restart()
                        done, start = [], 0
                    else:
                        start += run.start
                    self._lower(part, message, too_large)
                    break
            else:
                break
        return done

    def _lower(
        self, part: Sequence[SlotSample], message: str, too_large: Callable[[SlotSample, str], Exception]
    ) -> None:
        release_cached(self._memory.device)
        num_tokens, policy = sum(len(entry.sample.tokens) for entry in part), self._policy
        was_recomputed = policy is not None and policy.is_for(num_tokens)
        can_split = len(part) > part[0].group_size
        recomputes = policy is not None and policy.takes_over(num_tokens, can_split=can_split)
        if not can_split and not recomputes:
            if any(relief() for relief in self._reliefs):
                release_cached(self._memory.device)
                return
            raise too_large(max(part, key=lambda entry: len(entry.sample.tokens)), message)
        shortage = MemoryShortage(
            kind=self.kind,
            num_tokens=num_tokens,
            budget_before=self.token_budget,
            budget_after=self.token_budget if recomputes else max(1, num_tokens // 2),
            message=message,
            was_recomputed=was_recomputed,
            keep_tokens=num_tokens - 1 if recomputes else None,
        )
        self.token_budget = shortage.budget_after
        self._shortages.append(shortage)


def sample_too_large(
    sample: Sample, words: str, *, whose: str, source: str, mode: GradientCheckpointing | None = None
) -> SampleTooLargeError:
    """Return the error for a row that does not fit into memory alone.

    Args:
        words: What the allocator said.
        whose: The trial it belongs to, in words.
        source: ``file:line`` of the row.
        mode: When training passes are recomputed; None for an evaluation, which keeps no activations.
    """
    length = len(sample.tokens)
    said = " ".join(words.split())
    how, first = "", "Set"
    if mode in (GradientCheckpointing.AUTO, GradientCheckpointing.ALWAYS):
        how = " and with every layer recomputed"
    elif mode is GradientCheckpointing.NEVER:
        first = "Set memory.gradient_checkpointing: auto, set"
    return SampleTooLargeError(
        Problem(
            where=source,
            found=f"a row of {length:,} tokens of {whose}, which does not fit into memory even in a pass of its own"
            f"{how}",
            allowed="what fits together with the base model and the adapters",
            hint=f"{first} dataset.max_length below {length}, choose smaller ranks or fewer target_modules, raise "
            f"memory.limit where it is set, or take a device with more memory ({said[:100]}).",
        ),
        num_tokens=length,
    )


class RowsTooLarge:
    """Names the row of an executor that does not fit, and its trial."""

    def __init__(
        self, residents: Mapping[int, Resident], *, train_rows: TokenisedRows, mode: GradientCheckpointing
    ) -> None:
        """Look among ``residents``, by trial id, which may change.

        Args:
            train_rows: Rows of samples that no resident has.
            mode: When training passes are recomputed.
        """
        self._residents, self._train_rows, self._mode = residents, train_rows, mode

    def in_training(self, entry: SlotSample, words: str) -> SampleTooLargeError:
        """Return the error for a row of a training pass; ``words`` are the allocator's."""
        resident = self._resident_of(entry)
        own = self._train_rows if resident is None else resident.rows
        return self._named(entry, words, resident, rows=own, mode=self._mode)

    def in_evaluation(self, entry: SlotSample, words: str, *, rows: TokenisedRows) -> SampleTooLargeError:
        """Return the error for a row of an evaluation on ``rows``, which keeps no activations."""
        return self._named(entry, words, self._resident_of(entry), rows=rows, mode=None)

    def _resident_of(self, entry: SlotSample) -> Resident | None:
        return next((resident for resident in self._residents.values() if resident.slot == entry.slot), None)

    def _named(
        self,
        entry: SlotSample,
        words: str,
        resident: Resident | None,
        *,
        rows: TokenisedRows,
        mode: GradientCheckpointing | None,
    ) -> SampleTooLargeError:
        whose = "the base model"
        if resident is not None:
            whose = f"trial {resident.spec.trial_id} (r = {resident.spec.adapter.r})"
        source = rows.sources[entry.sample.sample_id]
        return sample_too_large(entry.sample, words, whose=whose, source=source, mode=mode)
