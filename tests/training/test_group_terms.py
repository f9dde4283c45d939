"""Terms of groups: prompt and answer apart, trials' own numbers, and an order that is the stream's."""

from __future__ import annotations

from dataclasses import replace

import torch

from cohort.data.packing import SlotSample
from cohort.training.group_terms import StepTerms, answer_losses, group_metrics, group_slots, group_starts, group_terms
from cohort.training.objectives import DEFAULT_OBJECTIVE, OBJECTIVES
from tests.training.small_models import compared_rows

ROWS = compared_rows(8, seed=2, longest=12)
DPO = OBJECTIVES["dpo"]


def entries_of(slot: int, rows: range, *, size: int) -> list[SlotSample]:
    return [SlotSample(slot=slot, sample=ROWS.sample(row), group_size=size) for row in rows]


MIXED = [*entries_of(0, range(4), size=2), *entries_of(1, range(3), size=1), *entries_of(2, range(4, 8), size=2)]
STEPS = {
    0: StepTerms(objective=DPO.with_values({"beta": 0.2}), divisor=2),
    1: StepTerms(objective=DEFAULT_OBJECTIVE, divisor=9),
    2: StepTerms(objective=DPO.with_values({"beta": 0.7, "loss_type": "hinge"}), divisor=2),
}


def losses_of(entries: list[SlotSample]) -> torch.Tensor:
    generator = torch.Generator().manual_seed(4)
    count = sum(len(entry.sample.tokens) for entry in entries)
    # rows of no sample stand behind them
    return torch.rand(count + 16, generator=generator, dtype=torch.float64)


def test_groups_of_mixed_sizes_keep_the_streams_order() -> None:
    assert group_starts(MIXED) == [0, 2, 4, 5, 6, 7, 9]
    assert group_slots(MIXED) == [0, 0, 1, 1, 1, 2, 2]
    losses_T = losses_of(MIXED)
    terms_G = group_terms(losses_T, MIXED, STEPS)
    start = 0
    sums = []
    for entry in MIXED:
        stop = start + len(entry.sample.tokens)
        # row t predicts token t + 1
        first = start + max(0, entry.sample.answer_start - 1)
        sums.append((float(losses_T[start:stop].sum()), float(losses_T[first:stop].sum())))
        start = stop
    assert terms_G[2:5].tolist() == [whole for whole, _ in sums[4:7]]
    for place, pair, beta in ((0, 0, 0.2), (1, 2, 0.2), (5, 7, 0.7), (6, 9, 0.7)):
        chosen, rejected = (-sums[pair + side][1] - MIXED[pair + side].sample.reference_logp for side in (0, 1))
        margin = torch.tensor(beta * (chosen - rejected), dtype=torch.float64)
        expected = -torch.nn.functional.logsigmoid(margin) if place < 2 else torch.relu(1 - margin)
        torch.testing.assert_close(terms_G[place], expected)


def test_a_nan_stays_in_its_group() -> None:
    losses_T = losses_of(MIXED).requires_grad_()
    with torch.no_grad():
        losses_T[: len(MIXED[0].sample.tokens)] = float("nan")
    terms_G = group_terms(losses_T, MIXED, STEPS)
    assert terms_G.isnan().tolist() == [True, *[False] * 6]
    (gradient_T,) = torch.autograd.grad(terms_G[1:].sum(), losses_T)
    own = sum(len(entry.sample.tokens) for entry in MIXED[:2])
    assert torch.isfinite(gradient_T[own:]).all()


def test_terms_of_several_groups_at_once_are_those_of_each() -> None:
    """As on a GPU, where groups of one kind are computed together."""
    samples = [ROWS.sample(row) for row in range(8)]
    entries = entries_of(0, range(8), size=2)
    losses_T = losses_of(entries)
    for name in ("dpo", "orpo", "cpo", "simpo"):
        objective = OBJECTIVES[name]
        steps = {0: StepTerms(objective=objective, divisor=4, values=objective.step_values(samples))}
        whole = group_terms(losses_T, entries, steps)
        lengths = [sum(len(samples[row + side].tokens) for side in (0, 1)) for row in range(0, 8, 2)]
        parts = losses_T[: sum(lengths)].split(lengths)
        each = [group_terms(part, entries[2 * n : 2 * n + 2], steps) for n, part in enumerate(parts)]
        torch.testing.assert_close(whole, torch.cat(each))
        assert set(group_metrics(losses_T, entries, steps)) == {"reward_accuracy", "reward_margin"}


def test_what_the_reference_is_asked_is_what_terms_subtract() -> None:
    entries = entries_of(0, range(2), size=2)
    losses_T = losses_of(entries)
    own = (-answer_losses(losses_T, [entry.sample for entry in entries])).tolist()
    samples = [replace(entry.sample, reference_logp=logp) for entry, logp in zip(entries, own, strict=True)]
    compared = [replace(entry, sample=sample) for entry, sample in zip(entries, samples, strict=True)]
    (term,) = group_terms(losses_T, compared, {0: StepTerms(objective=DPO, divisor=1)}).tolist()
    assert term == -float(torch.nn.functional.logsigmoid(torch.zeros((), dtype=torch.float64)))
