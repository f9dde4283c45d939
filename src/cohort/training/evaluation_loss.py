"""Validation loss of resident adapters, and of the frozen model, on the same rows."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from cohort.data.packing import SlotSample
from cohort.data.tokenised import TokenisedRows
from cohort.training.micro_batches import MicroBatches
from cohort.training.passes import Passes

__all__ = ["BASE_SLOT", "EvaluationLoss", "evaluation_losses"]

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


@torch.no_grad()
def evaluation_losses(
    passes: Passes,
    *,
    micro_batches: MicroBatches,
    slots: Sequence[int],
    rows: TokenisedRows,
    row_ids: Sequence[int],
    too_large: Callable[[SlotSample, str], Exception],
) -> dict[int, EvaluationLoss]:
    """Return the loss of each of ``slots`` (:data:`BASE_SLOT` for the frozen model) over ``row_ids``.

    All slots share the packed streams. Sums run group by group in the order of ``row_ids``, so an adapter's loss has
    the same bits in every pack.

    Args:
        rows, row_ids: The evaluation rows; where the objective groups rows, the ids are those of groups.
        too_large: Makes the error for a row that does not fit into memory alone.
    """
    # rows of no adapter come last in every stream
    order = sorted(slots, key=lambda slot: (slot == BASE_SLOT, slot))
    objective = passes.objective
    size = objective.group_size
    samples = [rows.sample(size * row_id + place) for row_id in row_ids for place in range(size)]
    entries = [SlotSample(slot=slot, sample=sample) for slot in order for sample in samples]

    def one_pass(present: Sequence[SlotSample]) -> list[dict[str, float]]:
        losses_T, own = passes.measure(present), [entry.sample for entry in present]
        measured = {"loss": objective.terms(losses_T, own), **objective.metrics(losses_T, own)}
        # one wait for each number of the whole pass, not one for each group
        groups = zip(*(values_G.tolist() for values_G in measured.values()), strict=True)
        return [dict(zip(measured, group, strict=True)) for group in groups]

    found = list(itertools.chain.from_iterable(micro_batches.run(entries, one_pass, too_large=too_large)))
    divisor, num_tokens = objective.divisor(samples), sum(len(sample.tokens) for sample in samples)
    divisors = tuple(objective.divisor(samples[start : start + size]) for start in range(0, len(samples), size))
    outcomes = {}
    for place, slot in enumerate(order):
        groups = found[place * len(row_ids) : (place + 1) * len(row_ids)]
        values = {name: tuple(group[name] for group in groups) for name in groups[0]}
        terms = values.pop("loss")
        outcomes[slot] = EvaluationLoss(
            loss=sum(terms) / divisor,
            num_tokens=num_tokens,
            metrics={name: sum(measured) / len(groups) for name, measured in values.items()},
            terms=terms,
            divisors=divisors,
            group_metrics=values,
        )
    return outcomes
