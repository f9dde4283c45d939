"""Losses over a divided vocabulary: those of one process and their gradients, odd labels and uneven parts too."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import Tensor

from cohort.kernels.cross_entropy import linear_cross_entropy
from cohort.models.weight_formats.kinds.plain import FrozenLinear
from cohort.ranks.tensor.groups import RankGroup
from cohort.ranks.tensor.vocabulary_head import VocabularyHead
from tests.ranks.tensor.thread_group import run_threads


def priced(
    hidden: Tensor, head: FrozenLinear | VocabularyHead, targets: Tensor, cap: float | None
) -> tuple[Tensor, Tensor]:
    own = hidden.clone().requires_grad_()
    losses = linear_cross_entropy(own, head=head, targets_T=targets, logit_cap=cap)
    # any weights: an objective may know them later
    (losses * torch.arange(1, len(losses) + 1)).nan_to_num().sum().backward()
    assert own.grad is not None
    return losses.detach(), own.grad


@pytest.mark.parametrize("cap", [None, 3.0])
@pytest.mark.parametrize(("vocabulary", "size"), [(97, 2), (97, 4), (5, 4)])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
def test_losses_and_gradients_are_those_of_one_process(
    cap: float | None, vocabulary: int, size: int, dtype: torch.dtype, tolerance: float
) -> None:
    generator = torch.Generator().manual_seed(vocabulary)
    hidden = torch.randn(40, 6, dtype=dtype, generator=generator)
    weight = torch.randn(vocabulary, 6, dtype=dtype, generator=generator)
    targets = torch.randint(0, vocabulary, (40,), generator=generator)
    targets[3:7] = -100
    expected = priced(hidden, FrozenLinear(weight), targets, cap)

    def work(group: RankGroup) -> tuple[Tensor, Tensor, Tensor, Counter[str]]:
        rows = VocabularyHead(FrozenLinear(weight), group, vocab_size=vocabulary).rows
        head = VocabularyHead(FrozenLinear(weight[rows].contiguous()), group, vocab_size=vocabulary)
        found = priced(hidden, head, targets, cap)
        counts = Counter(group.counts)
        return *found, head.forward(hidden), counts

    for losses, gradient, logits, counts in run_threads(size, work):
        torch.testing.assert_close(losses, expected[0], rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(gradient, expected[1], rtol=tolerance, atol=40 * tolerance)
        torch.testing.assert_close(logits, hidden @ weight.T, rtol=tolerance, atol=10 * tolerance)
        assert counts == Counter(all_gather=1, all_reduce=1)


def test_a_label_outside_of_the_vocabulary_spoils_its_own_row_alone() -> None:
    hidden, weight = torch.randn(4, 6), torch.randn(10, 6)
    targets = torch.tensor([1, 10, -5, 2])

    def work(group: RankGroup) -> Tensor:
        rows = VocabularyHead(FrozenLinear(weight), group, vocab_size=10).rows
        head = VocabularyHead(FrozenLinear(weight[rows].contiguous()), group, vocab_size=10)
        return linear_cross_entropy(hidden, head=head, targets_T=targets)

    for losses in run_threads(2, work):
        assert losses.isnan().tolist() == [False, True, True, False]


def test_nothing_to_price_is_no_exchange() -> None:
    def work(group: RankGroup) -> Counter[str]:
        head = VocabularyHead(FrozenLinear(torch.randn(5, 6)), group, vocab_size=10)
        losses = linear_cross_entropy(torch.randn(4, 6), head=head, targets_T=torch.full((4,), -100))
        assert not losses.any()
        return group.counts

    assert run_threads(2, work) == [Counter(), Counter()]
