"""From a schedule of micro-batches to what the stages of a pipeline pass: tokens, and who steps when."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cohort.data.packing import SlotSample
from cohort.scheduling.pipelines.microbatch.records import AdapterBatches, MicroBatch
from cohort.training.group_terms import StepTerms, group_starts
from cohort.training.step_samples import Resident, samples_of

__all__ = ["PipelineMicroBatch", "batches_of", "is_separated", "pipeline_window"]


@dataclass(frozen=True, kw_only=True)
class PipelineMicroBatch:
    """What passes the pipeline together; the same on every stage.

    Attributes:
        entries: Samples sorted by slot; none in a no-op.
        terms: What the losses of each slot's whole batch need.
        ends: Slots whose batch is complete with it: they step.
    """

    entries: tuple[SlotSample, ...] = ()
    terms: Mapping[int, StepTerms] = field(default_factory=dict)
    ends: tuple[int, ...] = ()


def batches_of(resident: Resident, *, num_steps: int) -> AdapterBatches:
    """Return the lengths of a trial's next steps, for the scheduler; adapters are numbered by slot.

    Samples that are compared share a micro-batch: a group of them is one sample of the schedule.

    Raises:
        ValueError: the trial's objective measures numbers of a whole step before it.
    """
    if resident.spec.objective.compares_batch:
        raise ValueError("a pipeline has no pass before a step that measures the objective's numbers (kto's KL term)")
    lengths = []
    for ahead in range(num_steps):
        entries = samples_of(resident, step=resident.step + ahead)
        tokens = [len(entry.sample.tokens) for entry in entries]
        starts = [*group_starts(entries), len(entries)]
        lengths.append(tuple(sum(tokens[first:end]) for first, end in itertools.pairwise(starts)))
    return AdapterBatches(adapter=resident.slot, lengths=tuple(lengths))


def pipeline_window(
    schedule: Sequence[MicroBatch], residents: Mapping[int, Resident]
) -> tuple[PipelineMicroBatch, ...]:
    """Return the micro-batches of a schedule with their samples.

    Args:
        schedule: Adapters are slots; batch 0 is the next step of each, and its samples are whole groups.
        residents: By slot.
    """
    last: dict[tuple[int, int], int] = {}
    for number, micro_batch in enumerate(schedule):
        for sample in micro_batch.samples:
            last[sample.adapter, sample.batch] = number
    samples = {(slot, batch): samples_of(residents[slot], step=residents[slot].step + batch) for slot, batch in last}
    terms = {}
    for (slot, batch), entries in samples.items():
        objective, own = residents[slot].spec.objective, [entry.sample for entry in entries]
        terms[slot, batch] = StepTerms(
            objective=objective, divisor=objective.divisor(own), values=objective.step_values(own)
        )
    window = []
    for number, micro_batch in enumerate(schedule):
        # within a slot in the trial's own order, so that gradients are summed as in one pass
        ordered = sorted(micro_batch.samples)
        window.append(
            PipelineMicroBatch(
                entries=tuple(
                    entry for sample in ordered for entry in _group(samples[sample.adapter, sample.batch], sample.place)
                ),
                terms={sample.adapter: terms[sample.adapter, sample.batch] for sample in ordered},
                ends=tuple(sorted(slot for (slot, batch), end in last.items() if end == number)),
            )
        )
    return tuple(window)


def _group(entries: Sequence[SlotSample], place: int) -> Sequence[SlotSample]:
    size = entries[0].group_size
    return entries[place * size : (place + 1) * size]


def is_separated(micro_batches: Sequence[PipelineMicroBatch], *, num_stages: int) -> bool:
    """Return whether a slot's batches are as far apart as the pipeline is long: forward passes see every step."""
    ended: dict[int, int] = {}
    began: dict[int, float] = {}
    for number, micro_batch in enumerate(micro_batches):
        for slot in {entry.slot for entry in micro_batch.entries}:
            if slot not in began:
                began[slot] = number
                if number < ended.get(slot, -math.inf) + num_stages:
                    return False
        for slot in micro_batch.ends:
            ended[slot] = number
            began.pop(slot, None)
    return True
