"""The samples of one optimizer step of every trial that takes it, and what the step is reported as."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cohort.core.events import StepDone
from cohort.data.order import SampleOrder
from cohort.data.packing import SlotSample
from cohort.data.tokenised import TokenisedRows
from cohort.kernels.dropout import row_keys
from cohort.training.group_terms import StepTerms, group_slots
from cohort.training.trial import TrialSpec

__all__ = ["Resident", "StepSamples", "finish_step", "gather", "samples_of"]


@dataclass(kw_only=True)
class Resident:
    """A trial in a slot, with the rows it trains on: an executor makes it when it loads the trial.

    Attributes:
        step: Optimizer steps done.
        order: Which groups of rows each step takes.
    """

    spec: TrialSpec
    slot: int
    step: int
    order: SampleOrder
    rows: TokenisedRows


@dataclass(frozen=True, kw_only=True)
class StepSamples:
    """The samples of one optimizer step of the trials that take it.

    Attributes:
        steps: Each trial with its slot and the steps done before, in slot order.
        entries: Their samples, sorted by slot.
        terms: What the terms of each slot's whole step need.
        num_tokens: All tokens of each slot's step.
    """

    steps: tuple[tuple[TrialSpec, int, int], ...]
    entries: tuple[SlotSample, ...]
    terms: dict[int, StepTerms]
    num_tokens: dict[int, int]


def gather(residents: Sequence[Resident], *, ahead: int = 0) -> StepSamples:
    """Return the samples of the residents' next step, or of the one ``ahead`` steps after it."""
    entries: list[SlotSample] = []
    terms: dict[int, StepTerms] = {}
    num_tokens: dict[int, int] = {}
    for resident in residents:
        objective = resident.spec.objective
        own = samples_of(resident, step=resident.step + ahead)
        samples = [entry.sample for entry in own]
        terms[resident.slot] = StepTerms(
            objective=objective,
            divisor=objective.divisor(samples),
            values=objective.step_values(samples),
            reference_adapter=resident.rows.reference_adapter,
        )
        num_tokens[resident.slot] = sum(len(sample.tokens) for sample in samples)
        entries += own
    steps = tuple((r.spec, r.slot, r.step + ahead) for r in residents)
    return StepSamples(steps=steps, entries=tuple(entries), terms=terms, num_tokens=num_tokens)


def samples_of(resident: Resident, *, step: int) -> list[SlotSample]:
    """Return the samples of one trial's ``step``, in its own order of the groups of its objective."""
    spec, found = resident.spec, []
    size = spec.objective.group_size
    row_ids = [group * size + place for group in resident.order.batch(step) for place in range(size)]
    for sample_id in row_ids:
        sample = spec.objective.seen(resident.rows.sample(sample_id), place=sample_id % size)
        # None, not unused keys: a pass without dropout has kernels of its own
        keys = None
        if spec.adapter.lora_dropout > 0:
            keys = row_keys(len(sample.tokens), trial_seed=spec.seed, step=step, sample_id=sample_id)
        found.append(SlotSample(slot=resident.slot, sample=sample, row_keys=keys, group_size=size))
    return found


def finish_step(samples: StepSamples, *, terms: Sequence[float], norms: Sequence[float]) -> tuple[StepDone, ...]:
    """Return the events of a step that was launched, in slot order.

    Args:
        samples: Those of the step.
        terms: The objective's term of each group of ``samples``, in their order.
        norms: The norm of each trial's gradient, in slot order.
    """
    sums = dict.fromkeys(samples.terms, 0.0)
    for slot, term in zip(group_slots(samples.entries), terms, strict=True):
        sums[slot] += term
    return tuple(
        StepDone(
            trial_id=spec.trial_id,
            step=done_before + 1,
            loss=sums[slot] / samples.terms[slot].divisor,
            grad_norm=norm,
            learning_rate=spec.learning_rate_at(done_before),
            num_tokens=samples.num_tokens[slot],
        )
        for (spec, slot, done_before), norm in zip(samples.steps, norms, strict=True)
    )
