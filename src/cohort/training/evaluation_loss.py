"""Validation loss of resident adapters, and of the frozen model, on the same rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from cohort.data.packing import SlotSample
from cohort.data.tokenised import TokenisedRows
from cohort.training.batch_values import with_measured_values
from cohort.training.group_terms import StepTerms, group_metrics, group_terms
from cohort.training.micro_batches import MicroBatches
from cohort.training.objectives.objective import Objective
from cohort.training.passes import MeasuringPasses
from cohort.training.step_samples import Resident

__all__ = [
    "BASE_SLOT",
    "EvaluationLoss",
    "LaunchedEvaluation",
    "evaluation_losses",
    "launch_evaluation",
    "trial_losses",
]

# the slot of rows that only the frozen model reads
BASE_SLOT = -1


@dataclass(frozen=True, kw_only=True)
class EvaluationLoss:
    """Outcome of one adapter on the evaluation rows.

    Attributes:
        loss: The objective's; of sft the mean loss per trained token, in nats.
        num_tokens: Tokens that were read.
        metrics: Means over the groups of what else the objective measures, by name.
        terms: The objective's term of each group, in the order of the rows; of sft the sum of a row's token losses.
        divisors: The objective's divisor of each group; of sft a row's trained tokens.
        group_metrics: What ``metrics`` are the means of, in the order of the rows.
    """

    loss: float
    num_tokens: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    terms: tuple[float, ...] = ()
    divisors: tuple[int, ...] = ()
    group_metrics: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    @property
    def means(self) -> list[float]:
        """The objective's value of each group; of sft a row's mean loss per trained token."""
        return [term / divisor for term, divisor in zip(self.terms, self.divisors, strict=True)]


def trial_losses(
    residents: Mapping[int, Resident],
    trial_ids: Sequence[int],
    *,
    objective: Objective | None,
    losses_of: Callable[[Mapping[int, Objective]], Mapping[int, EvaluationLoss]],
) -> dict[int, EvaluationLoss]:
    """Return the losses of some of ``residents`` by trial id.

    Args:
        residents: By trial id.
        objective: What all are evaluated by; None takes each trial's own.
        losses_of: Gives the loss of each slot, by its objective.
    """
    slots = {residents[trial_id].slot: trial_id for trial_id in trial_ids}
    found = losses_of({slot: objective or residents[trial_id].spec.objective for slot, trial_id in slots.items()})
    return {slots[slot]: outcome for slot, outcome in found.items()}


@dataclass(frozen=True, kw_only=True)
class LaunchedEvaluation:
    """An evaluation whose passes are launched; the device may still be at them.

    Attributes:
        entries: Its samples, in the order of the slots.
        steps: What the terms of each slot need, in that order.
        num_groups: Groups of rows of each slot.
        measured: Of each pass, by name, the numbers of its groups [G].
    """

    entries: Sequence[SlotSample]
    steps: Mapping[int, StepTerms]
    num_groups: int
    measured: Sequence[Mapping[str, Tensor]]

    def losses(self) -> dict[int, EvaluationLoss]:
        """Wait for the numbers and return the loss of each slot."""
        # one wait for each number of a whole pass, not one for each group
        lists = [{name: values_G.tolist() for name, values_G in measured.items()} for measured in self.measured]
        found = {name: [value for of_pass in lists for value in of_pass[name]] for name in lists[0]}
        outcomes = {}
        for place, (slot, step) in enumerate(self.steps.items()):
            size = step.objective.group_size
            own = slice(place * self.num_groups, (place + 1) * self.num_groups)
            samples = [entry.sample for entry in self.entries if entry.slot == slot]
            values = {name: tuple(of_groups[own]) for name, of_groups in found.items()}
            terms = values.pop("loss")
            outcomes[slot] = EvaluationLoss(
                loss=sum(terms) / step.divisor,
                num_tokens=sum(len(sample.tokens) for sample in samples),
                metrics={name: sum(of_groups) / self.num_groups for name, of_groups in values.items()},
                terms=terms,
                divisors=tuple(
                    step.objective.divisor(samples[start : start + size]) for start in range(0, len(samples), size)
                ),
                group_metrics=values,
            )
        return outcomes


@torch.no_grad()
def launch_evaluation(
    passes: MeasuringPasses,
    *,
    micro_batches: MicroBatches,
    objectives: Mapping[int, Objective],
    rows: TokenisedRows,
    row_ids: Sequence[int],
    too_large: Callable[[SlotSample, str], Exception],
) -> LaunchedEvaluation:
    """Launch the evaluation of each slot of ``objectives`` (:data:`BASE_SLOT` for the frozen model) over ``row_ids``.

    All slots share the packed streams. Sums run group by group in the order of ``row_ids``, so an adapter's loss has
    the same bits in every pack.

    Args:
        objectives: By slot; those of one task differ in their numbers alone.
        rows, row_ids: The evaluation rows; where the objectives group rows, the ids are those of groups.
        too_large: Makes the error for a row that does not fit into memory alone.
    """
    # rows of no adapter come last in every stream
    order = sorted(objectives, key=lambda slot: (slot == BASE_SLOT, slot))
    entries: list[SlotSample] = []
    steps: dict[int, StepTerms] = {}
    for slot in order:
        objective = objectives[slot]
        size = objective.group_size
        own = [size * row_id + place for row_id in row_ids for place in range(size)]
        samples = [objective.seen(rows.sample(row), place=row % size) for row in own]
        entries += [SlotSample(slot=slot, sample=sample, group_size=size) for sample in samples]
        steps[slot] = StepTerms(
            objective=objective,
            divisor=objective.divisor(samples),
            values=objective.step_values(samples),
            reference_adapter=rows.reference_adapter,
        )
    steps = with_measured_values(passes, entries, steps, micro_batches=micro_batches, too_large=too_large)

    def one_pass(present: Sequence[SlotSample]) -> dict[str, Tensor]:
        losses_T = passes.measure(present)
        return {"loss": group_terms(losses_T, present, steps), **group_metrics(losses_T, present, steps)}

    measured = micro_batches.run(entries, one_pass, too_large=too_large)
    return LaunchedEvaluation(entries=entries, steps=steps, num_groups=len(row_ids), measured=measured)


def evaluation_losses(
    passes: MeasuringPasses,
    *,
    micro_batches: MicroBatches,
    objectives: Mapping[int, Objective],
    rows: TokenisedRows,
    row_ids: Sequence[int],
    too_large: Callable[[SlotSample, str], Exception],
) -> dict[int, EvaluationLoss]:
    """Return the loss of each slot over ``row_ids``; the arguments are those of :func:`launch_evaluation`."""
    return launch_evaluation(
        passes,
        micro_batches=micro_batches,
        objectives=objectives,
        rows=rows,
        row_ids=row_ids,
        too_large=too_large,
    ).losses()
