"""Each token objective is the sum that Tinker's pages define, written here as plainly as it can be."""

from __future__ import annotations

import math

import pytest
import torch

from cohort.training.client_losses import TOKEN_OBJECTIVES

GENERATOR = torch.Generator().manual_seed(3)
LOGPS = -3 * torch.rand(9, dtype=torch.float64, generator=GENERATOR)
INPUTS = {
    "weights": torch.randn(9, dtype=torch.float64, generator=GENERATOR),
    # so far away that both clip thresholds are passed
    "logprobs": LOGPS + torch.linspace(-1.0, 1.0, 9, dtype=torch.float64),
    "advantages": torch.randn(9, dtype=torch.float64, generator=GENERATOR),
    "sequence_ratio_mask": torch.tensor([0.0, 1, 1, 0, 1, 1, 1, 1, 0], dtype=torch.float64),
}
# two data, the second of one target
OFFSETS = (0, 8, 9)


def expected(name: str, place: int, numbers: dict[str, float]) -> tuple[float, float]:
    """Return a target's term and its derivative in the target's own log-probability."""
    lp, q, a = float(LOGPS[place]), float(INPUTS["logprobs"][place]), float(INPUTS["advantages"][place])
    low, high = numbers.get("clip_low_threshold", 0.0), numbers.get("clip_high_threshold", 0.0)
    ratio = math.exp(lp - q)
    if name == "cross_entropy":
        weight = float(INPUTS["weights"][place])
        return -weight * lp, -weight
    if name == "importance_sampling":
        return -ratio * a, -ratio * a
    if name == "cispo":
        weight = min(max(ratio, low), high)
        return -weight * lp * a, -weight * a
    if name == "dro":
        beta = numbers["beta"]
        return -(lp * a - beta / 2 * (lp - q) ** 2), -(a - beta * (lp - q))
    if name == "gspo":
        own = range(8) if place < 8 else range(8, 9)
        masked = [i for i in own if INPUTS["sequence_ratio_mask"][i]]
        ratio = math.exp(sum(float(LOGPS[i] - INPUTS["logprobs"][i]) for i in masked) / max(1, len(masked)))
    clipped = min(max(ratio, low), high)
    if ratio * a <= clipped * a:
        return -ratio * a, -ratio * a
    return -clipped * a, 0.0


@pytest.mark.parametrize("name", sorted(TOKEN_OBJECTIVES))
@pytest.mark.parametrize("changed", [False, True])
def test_terms_and_derivatives_are_those_of_the_definition(name: str, *, changed: bool) -> None:
    objective = TOKEN_OBJECTIVES[name]
    numbers = dict(objective.numbers or {})
    if changed and "beta" in numbers:
        numbers["beta"] = 0.3
    elif changed and numbers:
        numbers = {"clip_low_threshold": 0.5, "clip_high_threshold": 1.05}
    logps = LOGPS.clone().requires_grad_()
    names = (*objective.inputs, *(objective.optional or {}))
    inputs = {each: INPUTS[each] for each in names}
    terms = objective.terms(logps, inputs=inputs, numbers=numbers, offsets=OFFSETS)
    (gradient,) = torch.autograd.grad(terms.sum(), logps)
    terms = terms.detach()
    for place in range(9):
        term, slope = expected(name, place, numbers)
        assert float(terms[place]) == pytest.approx(term, abs=1e-12), place
        assert float(gradient[place]) == pytest.approx(slope, abs=1e-12), place


def test_gspo_has_a_finite_ratio_where_the_mask_is_empty_or_a_masked_target_is_not_finite() -> None:
    objective = TOKEN_OBJECTIVES["gspo"]
    inputs = {name: INPUTS[name].clone() for name in ("logprobs", "advantages", "sequence_ratio_mask")}
    inputs["logprobs"][0] = -math.inf
    inputs["sequence_ratio_mask"][8] = 0.0
    terms = objective.terms(LOGPS, inputs=inputs, numbers=dict(objective.numbers or {}), offsets=OFFSETS)
    assert terms.isfinite().all()
    assert float(terms[8]) == pytest.approx(-float(inputs["advantages"][8]))


def test_names_are_those_of_the_files_and_of_the_clients() -> None:
    assert {name: objective.name for name, objective in TOKEN_OBJECTIVES.items()} == {
        name: name for name in ("cispo", "cross_entropy", "dro", "gspo", "importance_sampling", "ppo")
    }
    assert [name for name, objective in TOKEN_OBJECTIVES.items() if objective.several_targets] == ["cross_entropy"]
