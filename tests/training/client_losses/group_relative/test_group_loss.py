"""What a token counts is the same however a step is cut, and what has no weight reaches no gradient."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from cohort.training.client_losses import TOKEN_OBJECTIVES
from cohort.training.client_losses.group_relative import GROUP_LOSSES
from cohort.training.client_losses.group_relative.group_loss import NUMBERS, answer_shares

LENGTHS = [3, 1, 4, 0]


def test_shares_are_the_divisors_of_the_whole_step() -> None:
    def shares(name: str) -> list[float]:
        left_out = [False, True, False, False]
        return answer_shares(GROUP_LOSSES[name], LENGTHS, left_out=left_out, max_completion_length=10)

    assert shares("grpo") == pytest.approx([1 / 12, 0, 1 / 16, 0])
    assert shares("dapo") == pytest.approx([1 / 7, 0, 1 / 7, 0])
    assert shares("dr_grpo") == pytest.approx([1 / 40, 0, 1 / 40, 0])
    assert shares("gspo") == shares("rloo") == shares("grpo")
    assert shares("cispo") == shares("reinforce_plus_plus") == shares("dapo")


@pytest.mark.parametrize("name", sorted(GROUP_LOSSES))
def test_a_step_may_be_cut_anywhere_and_targets_without_a_weight_reach_nothing(name: str) -> None:
    generator = torch.Generator().manual_seed(5)
    weights = torch.tensor([0.0, 0.2, 0.2, 0.0, 0.1, 0.1, 0.1], dtype=torch.float64)
    logps = -torch.rand(7, generator=generator, dtype=torch.float64)
    inputs = {
        "logprobs": logps + 0.3 * torch.randn(7, generator=generator, dtype=torch.float64),
        "ref_logprobs": -torch.rand(7, generator=generator, dtype=torch.float64),
        "advantages": torch.tensor([9.0, 1, 1, 9, -1, -1, -1], dtype=torch.float64),
        "weights": weights,
    }
    # what a prompt's targets may hold
    logps[0], inputs["logprobs"][0], inputs["ref_logprobs"][3] = -math.inf, -math.inf, math.nan
    numbers = dict(NUMBERS) | {"beta": 0.2}

    def found(start: int, stop: int, offsets: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        leaf = logps[start:stop].clone().requires_grad_()
        own = {key: value[start:stop] for key, value in inputs.items()}
        terms = GROUP_LOSSES[name].objective.terms(leaf, inputs=own, numbers=numbers, offsets=offsets)
        (slopes,) = torch.autograd.grad(terms.sum(), leaf)
        return terms.detach(), slopes

    terms, slopes = found(0, 7, [0, 3, 7])
    assert terms.isfinite().all()
    assert slopes.isfinite().all()
    assert not terms[weights == 0].any()
    assert not slopes[weights == 0].any()
    assert slopes[weights != 0].all()
    for start, stop in ((0, 3), (3, 7)):
        own_terms, own_slopes = found(start, stop, [0, stop - start])
        torch.testing.assert_close(own_terms, terms[start:stop], rtol=1e-12, atol=0)
        torch.testing.assert_close(own_slopes, slopes[start:stop], rtol=1e-12, atol=0)


@pytest.mark.parametrize("name", sorted(GROUP_LOSSES))
def test_on_policy_the_sampler_s_log_probabilities_are_not_read(name: str) -> None:
    leaf = torch.tensor([-1.0, -2.0], requires_grad=True)
    inputs = {
        "logprobs": torch.tensor([math.nan, math.nan]),
        "ref_logprobs": torch.zeros(2),
        "advantages": torch.ones(2),
        "weights": torch.full((2,), 0.5),
    }
    numbers = dict(NUMBERS) | {"on_policy": 1.0, "epsilon_high": 2.0}
    terms = GROUP_LOSSES[name].objective.terms(leaf, inputs=inputs, numbers=numbers, offsets=[0, 2])
    (slopes,) = torch.autograd.grad(terms.sum(), leaf)
    # the policy gradient; the ratio of an answer is the mean of its tokens' or their product
    expected = {"gspo": -0.5, "rloo": -1.0}.get(name, -0.5)
    assert slopes.tolist() == pytest.approx([expected] * 2)


def test_clients_are_offered_their_own_losses_alone() -> None:
    assert set(TOKEN_OBJECTIVES) == {"cispo", "cross_entropy", "dro", "gspo", "importance_sampling", "ppo"}


@pytest.mark.parametrize(
    ("name", "epsilon_high", "clipped"),
    [
        # ratios 1.5, 1.05 and 0.5, 1.5, 0.9: of the better answer what is above 1.2, of the worse one what is below 0.8
        ("grpo", 0.0, [True, False, True, False, False]),
        ("dapo", 0.6, [False, False, True, False, False]),
        # the ratio itself, of the better answer alone
        ("cispo", 1.4, [True, False, False, False, False]),
        ("cispo", 5.0, [False] * 5),
        # one ratio for an answer: the geometric mean of its tokens', 1.25 and 0.88
        ("gspo", 0.0, [True, True, False, False, False]),
        ("gspo", 0.3, [False] * 5),
        # one ratio for an answer: the product, 1.58 and 0.68
        ("rloo", 0.0, [True] * 5),
    ],
)
def test_what_is_clipped_is_told_by_the_ratio_of_the_loss(name: str, epsilon_high: float, clipped: list[bool]) -> None:
    log_ratios = [np.log([1.5, 1.05]), np.log([0.5, 1.5, 0.9])]
    numbers = {"epsilon": 0.2, "epsilon_high": epsilon_high}
    found = GROUP_LOSSES[name].clipped(log_ratios, [0.5, -0.5], numbers=numbers)
    assert found.tolist() == clipped
