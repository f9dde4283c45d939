"""Own embeddings and heads of a packed pass against the definition, row by row, forward and every gradient."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from cohort.adapters.modules_to_save.saved_modules import EMBEDDING, HEAD
from cohort.adapters.modules_to_save.saved_tables import (
    SavedTables,
    own_embeddings,
    own_head_losses,
    own_logits,
    slots_with,
)
from cohort.kernels.segments import SegmentTable

V, D = 23, 6


def tables(slot: int, *names: str, seed: int = 0) -> SavedTables:
    generator = torch.Generator().manual_seed(100 * seed + slot)
    own = {name: torch.randn(V, D, generator=generator, dtype=torch.float64) for name in names}
    return SavedTables(slot=slot, tables=own, gradients={name: torch.zeros_like(table) for name, table in own.items()})


def stream(lengths: Sequence[int], slots: Sequence[int]) -> tuple[SegmentTable, Tensor]:
    num_rows = sum(lengths) + 5
    segments = SegmentTable.from_samples(lengths, slots=slots, num_slots=4, num_rows=num_rows)
    return segments, torch.randint(0, V, (num_rows,), generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("padding_id", [None, 4])
@pytest.mark.parametrize(("lengths", "slots"), [((3, 1, 9, 4), (0, 0, 2, -1)), ((2, 0, 30), (1, 2, 3)), ((4,), (-1,))])
def test_rows_are_looked_up_in_their_slot_s_table(
    lengths: tuple[int, ...], slots: tuple[int, ...], padding_id: int | None
) -> None:
    segments, tokens_T = stream(lengths, slots)
    frozen_VD = torch.randn(V, D, dtype=torch.float64)
    saved = (tables(0, EMBEDDING), tables(1, HEAD), tables(2, EMBEDDING, HEAD))
    weights_TD = torch.randn(len(tokens_T), D, dtype=torch.float64)
    found = own_embeddings(
        F.embedding(tokens_T, frozen_VD).requires_grad_(),
        tokens_T,
        saved=saved,
        segments=segments,
        scale=2.5,
        padding_id=padding_id,
    )
    (found * weights_TD).sum().backward()
    expected = F.embedding(tokens_T, frozen_VD)
    for own in saved:
        rows, table = segments.rows(own.slot), own.tables.get(EMBEDDING)
        if table is None:
            continue
        leaf = table.clone().requires_grad_()
        looked_up = 2.5 * F.embedding(tokens_T[rows], leaf, padding_idx=padding_id)
        expected[rows] = looked_up.detach()
        (looked_up * weights_TD[rows]).sum().backward()
        assert leaf.grad is not None
        torch.testing.assert_close(own.gradients[EMBEDDING], leaf.grad, rtol=1e-12, atol=1e-12)
    assert torch.equal(found.detach(), expected)


@pytest.mark.parametrize("logit_cap", [None, 2.0])
def test_losses_and_gradients_are_those_of_the_slot_s_head(logit_cap: float | None) -> None:
    segments, targets_T = stream((3, 1, 9, 4), (0, 0, 2, -1))
    targets_T[[0, 5, 13, 14, 15, 16, 17]] = -100
    saved = (tables(0, HEAD), tables(2, EMBEDDING, HEAD), tables(3, HEAD))
    owns = slots_with(saved, HEAD, segments)
    # the last has no rows
    assert [own.slot for own in owns] == [0, 2]
    samples = {slot: [s for s in segments.samples if s.slot == slot] for slot in (0, 2)}
    runs = [
        [s.start + (targets_T[s.start : s.stop] != -100).nonzero().squeeze(1) for s in samples[own.slot]]
        for own in owns
    ]
    hidden_TD = torch.randn(len(targets_T), D, dtype=torch.float64, requires_grad=True)
    weights_T = torch.rand(len(targets_T), dtype=torch.float64)
    losses_T = own_head_losses(hidden_TD, owns=owns, targets_T=targets_T, runs=runs, logit_cap=logit_cap)
    (losses_T * weights_T).sum().backward()
    expected_T, expected_TD = torch.zeros_like(weights_T), torch.zeros_like(hidden_TD)
    for own in owns:
        rows = segments.rows(own.slot)
        leaf, table = hidden_TD.detach()[rows].requires_grad_(), own.tables[HEAD].clone().requires_grad_()
        logits = leaf @ table.T
        logits = logits if logit_cap is None else logit_cap * torch.tanh(logits / logit_cap)
        found = F.cross_entropy(logits, targets_T[rows], ignore_index=-100, reduction="none")
        (found * weights_T[rows]).sum().backward()
        assert leaf.grad is not None
        assert table.grad is not None
        expected_T[rows], expected_TD[rows] = found.detach(), leaf.grad
        torch.testing.assert_close(own.gradients[HEAD], table.grad, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(losses_T.detach(), expected_T, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(hidden_TD.grad, expected_TD, rtol=1e-12, atol=1e-12)
    assert not saved[2].gradients[HEAD].any()


def test_next_tokens_are_scored_by_the_head_of_their_slot() -> None:
    saved = (tables(1, EMBEDDING), tables(2, HEAD))
    hidden_BD, frozen_VD = torch.randn(4, D, dtype=torch.float64), torch.randn(V, D, dtype=torch.float64)
    logits_BV = hidden_BD @ frozen_VD.T
    expected = logits_BV.clone()
    expected[[0, 3]] = 2.0 * torch.tanh(hidden_BD[[0, 3]] @ saved[1].tables[HEAD].T / 2.0)
    found = own_logits(logits_BV, hidden_BD, saved=saved, slots=[2, 1, -1, 2], logit_cap=2.0)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
