"""From the token losses of a pass to the terms and metrics of its groups, of trials with one objective or several.

A reduction of a group reads that group alone, so a NaN stays in its group. On a CPU each group is computed by itself:
elementwise operations there round by a number's place in its vector, and a term must have the same bits in every pack.

Shapes:  T rows of the stream · N samples · G groups · S rows of a group
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from cohort.data.packing import SlotSample
from cohort.data.tokenised import ReferenceFiles, Sample
from cohort.kernels.staging import to_device_unwaited
from cohort.training.objectives.objective import Groups, Objective
from cohort.training.token_losses import sequence_sums

__all__ = ["StepTerms", "answer_losses", "group_metrics", "group_slots", "group_starts", "group_terms"]


@dataclass(frozen=True, kw_only=True)
class StepTerms:
    """What the terms of one slot's optimizer step, or evaluation, need besides token losses.

    Attributes:
        objective: The trial's own.
        divisor: What the sum of the step's terms is divided by.
        values: The objective's numbers of the whole step.
        reference_adapter: As of the rows.
    """

    objective: Objective
    divisor: int
    values: tuple[float, ...] = ()
    reference_adapter: ReferenceFiles | None = None


def group_starts(entries: Sequence[SlotSample]) -> list[int]:
    """Return the place of the first sample of each group."""
    starts, place = [], 0
    while place < len(entries):
        starts.append(place)
        place += entries[place].group_size
    return starts


def group_slots(entries: Sequence[SlotSample]) -> list[int]:
    """Return the slot of each group."""
    return [entries[place].slot for place in group_starts(entries)]


def group_terms(losses_T: Tensor, entries: Sequence[SlotSample], steps: Mapping[int, StepTerms]) -> Tensor:
    """Return the term of each group [G], in the stream's order; differentiable in the token losses.

    Args:
        losses_T: ``-log p`` of every row's next token, 0 where it is not trained; filler rows come last.
        entries: The samples in the stream's order, whole groups.
        steps: By slot.
    """
    samples = [entry.sample for entry in entries]
    if all(steps[entry.slot].objective.sums_tokens for entry in entries):
        return sequence_sums(losses_T, samples)
    found: list[Tensor] = []
    places: list[int] = []
    for batch in _batches(losses_T, entries, steps):
        found.append(batch.objective.terms(batch.groups))
        places += batch.places
    return _in_order(torch.cat(found), places)


def group_metrics(losses_T: Tensor, entries: Sequence[SlotSample], steps: Mapping[int, StepTerms]) -> dict[str, Tensor]:
    """Return what else the objectives measure of each group, by name; trials of one task measure the same."""
    if all(steps[entry.slot].objective.sums_tokens for entry in entries):
        return {}
    found: dict[str, list[Tensor]] = {}
    places: list[int] = []
    for batch in _batches(losses_T, entries, steps):
        places += batch.places
        for name, values_G in batch.objective.metrics(batch.groups).items():
            found.setdefault(name, []).append(values_G)
    return {name: _in_order(torch.cat(values), places) for name, values in found.items()}


def answer_losses(losses_T: Tensor, samples: Sequence[Sample]) -> Tensor:
    """Return the losses of each sample's answer [N], summed as the terms of groups sum them."""
    return _piece_sums(losses_T, samples, cuts=[sample.answer_start - 1 for sample in samples])[:, 1]


@dataclass(frozen=True, kw_only=True)
class _Batch:
    """Groups whose terms are computed together, and their places among all groups."""

    objective: Objective
    groups: Groups
    places: list[int]


def _batches(losses_T: Tensor, entries: Sequence[SlotSample], steps: Mapping[int, StepTerms]) -> Iterator[_Batch]:
    # plain sums are whole, as alone: in pieces they would round otherwise
    cuts = [0 if steps[entry.slot].objective.sums_tokens else entry.sample.answer_start - 1 for entry in entries]
    sums_N2 = _piece_sums(losses_T, [entry.sample for entry in entries], cuts=cuts)
    starts = group_starts(entries)
    if losses_T.device.type == "cpu":
        together = [[place] for place in range(len(starts))]
    else:
        by_kind: dict[object, list[int]] = {}
        for place, start in enumerate(starts):
            by_kind.setdefault(steps[entries[start].slot].objective.kind, []).append(place)
        together = list(by_kind.values())
    for places in together:
        own = [steps[entries[starts[place]].slot] for place in places]
        size = own[0].objective.group_size
        rows = [starts[place] + within for place in places for within in range(size)]
        groups = _groups_of([entries[row].sample for row in rows], rows=rows, own=own, size=size, sums_N2=sums_N2)
        if own[0].objective.reads_tokens:
            groups = replace(groups, token_losses=_trained_losses(losses_T, entries, rows))
        yield _Batch(objective=own[0].objective, groups=groups, places=places)


def _groups_of(
    samples: Sequence[Sample], *, rows: Sequence[int], own: Sequence[StepTerms], size: int, sums_N2: Tensor
) -> Groups:
    names, num_values = list(own[0].objective.numbers), len(own[0].values)
    # one transfer for all that the host knows
    host = np.concatenate(
        [
            np.array([int(sample.trained[sample.answer_start :].sum()) for sample in samples], dtype=np.float64),
            np.array([-sample.reference_logp for sample in samples], dtype=np.float64),
            *(np.array([step.values[which] for step in own], dtype=np.float64) for which in range(num_values)),
            *(np.array([step.objective.numbers[name] for step in own], dtype=np.float64) for name in names),
        ]
    )
    count, num = len(samples), len(own)
    there = to_device_unwaited(host, sums_N2.device).to(sums_N2.dtype)
    parts = there.split([count, count, *([num] * (num_values + len(names)))])
    if len(rows) == len(sums_N2):
        picked = sums_N2
    else:
        picked = sums_N2[to_device_unwaited(np.array(rows, dtype=np.int64), sums_N2.device)]
    prompts, answers = picked.view(num, size, 2).unbind(-1)
    return Groups(
        samples=tuple(samples),
        answer_losses_GS=answers,
        prompt_losses_GS=prompts,
        answer_tokens_GS=parts[0].view(num, size),
        reference_losses_GS=parts[1].view(num, size),
        step_values=tuple(parts[2 : 2 + num_values]),
        numbers=dict(zip(names, parts[2 + num_values :], strict=True)),
    )


def _trained_losses(losses_T: Tensor, entries: Sequence[SlotSample], places: Sequence[int]) -> tuple[Tensor, ...]:
    """Return the losses of the trained tokens of the samples at ``places``, each [n]; row t predicts token t + 1."""
    stops = np.cumsum([len(entry.sample.tokens) for entry in entries])
    rows = [
        stops[place] - len(entries[place].sample.tokens) + np.flatnonzero(entries[place].sample.trained) - 1
        for place in places
    ]
    picked = losses_T[to_device_unwaited(np.concatenate(rows).astype(np.int64), losses_T.device)]
    own_losses: tuple[Tensor, ...] = picked.split([len(own) for own in rows])
    return own_losses


def _piece_sums(losses_T: Tensor, samples: Sequence[Sample], *, cuts: Sequence[int]) -> Tensor:
    """Return the losses of each sample before and from row ``cuts`` of it [N, 2], each part summed by itself.

    Row t predicts token t + 1, so an answer's first loss is one row before its first token.
    """
    lengths: list[int] = []
    for sample, cut in zip(samples, cuts, strict=True):
        before = min(max(0, cut), len(sample.tokens))
        lengths += [before, len(sample.tokens) - before]
    used_T = losses_T[: sum(lengths)]
    if losses_T.device.type == "cpu":
        sums = torch.stack([piece.sum() for piece in used_T.split(lengths)])
    else:
        counts = to_device_unwaited(np.array(lengths, dtype=np.int64), losses_T.device)
        sums = torch.segment_reduce(used_T, "sum", lengths=counts)
    return sums.view(-1, 2)


def _in_order(values: Tensor, places: Sequence[int]) -> Tensor:
    if all(place == number for number, place in enumerate(places)):
        return values
    back = np.empty(len(places), dtype=np.int64)
    back[list(places)] = np.arange(len(places))
    return values[to_device_unwaited(back, values.device)]
