"""Numbers of a whole step that are measured before it: KTO's distance from the reference on mismatched rows.

Neither the policy's nor the reference model's pass keeps a gradient. What the reference model says of a row is asked
once for all slots of a call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch

from cohort.data.packing import SlotSample
from cohort.data.tokenised import ReferenceFiles, Sample
from cohort.training.group_terms import StepTerms
from cohort.training.micro_batches import MicroBatches
from cohort.training.passes import MeasuringPasses
from cohort.training.token_losses import sequence_sums

__all__ = ["with_measured_values"]

# the slot of rows that only the frozen model reads
_NO_ADAPTER = -1


@torch.no_grad()
def with_measured_values(
    passes: MeasuringPasses,
    entries: Sequence[SlotSample],
    steps: Mapping[int, StepTerms],
    *,
    micro_batches: MicroBatches,
    too_large: Callable[[SlotSample, str], Exception],
) -> dict[int, StepTerms]:
    """Return ``steps`` with the numbers that have to be measured; nothing runs where none has.

    Args:
        entries: All samples of the steps.
        steps: By slot.
        micro_batches: Those of passes without gradients.
        too_large: Makes the error for a row that does not fit into memory alone.
    """
    wanted = {slot: step for slot, step in steps.items() if step.objective.compares_batch}
    if not wanted:
        return dict(steps)
    companions = {
        slot: [
            _within(sample, passes.context)
            for sample in step.objective.companions([entry.sample for entry in entries if entry.slot == slot])
        ]
        for slot, step in wanted.items()
    }
    # by reference model, the frozen one alone or with an adapter: each row once
    shared: dict[ReferenceFiles | None, dict[bytes, Sample]] = {None: {}}
    for slot, rows in companions.items():
        of_model = shared.setdefault(wanted[slot].reference_adapter, {})
        of_model.update({_content(sample): sample for sample in rows})
    own_entries = [SlotSample(slot=slot, sample=sample) for slot, own in companions.items() for sample in own]
    asked = sorted(own_entries, key=lambda entry: (entry.slot == _NO_ADAPTER, entry.slot))
    asked += [SlotSample(slot=_NO_ADAPTER, sample=sample) for sample in shared[None].values()]

    def losses_of(entries: Sequence[SlotSample], passes: MeasuringPasses) -> list[float]:
        def one_pass(part: Sequence[SlotSample]) -> list[float]:
            sums: list[float] = sequence_sums(passes.measure(part), [entry.sample for entry in part]).tolist()
            return sums

        return [loss for part in micro_batches.run(entries, one_pass, too_large=too_large) for loss in part]

    losses = losses_of(asked, passes)
    references: dict[ReferenceFiles | None, dict[bytes, float]] = {
        None: dict(zip(shared.pop(None), losses[len(own_entries) :], strict=True))
    }
    for adapter, of_model in shared.items():
        assert adapter is not None, "the frozen model's rows were taken out"
        of_adapter = [SlotSample(slot=0, sample=sample) for sample in of_model.values()]
        found = losses_of(of_adapter, passes.of_adapter(adapter))
        references[adapter] = dict(zip(of_model, found, strict=True))
    measured = dict(steps)
    for slot, step in wanted.items():
        own = [loss for entry, loss in zip(asked, losses, strict=True) if entry.slot == slot][: len(companions[slot])]
        reference = references[step.reference_adapter]
        expected = [reference[_content(sample)] for sample in companions[slot]]
        measured[slot] = replace(step, values=step.objective.measured_values(step.values, own, expected))
    return measured


def _content(sample: Sample) -> bytes:
    return sample.tokens.tobytes() + sample.trained.tobytes()


def _within(sample: Sample, length: int) -> Sample:
    """Return the row cut to what the model can read; a prompt and another row's answer may be longer than any row."""
    return replace(sample, tokens=sample.tokens[:length], trained=sample.trained[:length])
