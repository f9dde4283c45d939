"""Muon's iteration: singular values near 1, the same singular vectors, and the same step on either side."""

from __future__ import annotations

import pytest
import torch

from cohort.adapters.adapter_state import AdapterState
from cohort.adapters.bank import AdapterBank
from cohort.adapters.layout import AdapterLayout
from cohort.training.optimizers.kinds.muon import Muon, orthogonalised
from tests.training.optimizers.test_slot_step import resident

LAYOUT = AdapterLayout({"q": (24, 40), "k": (24, 8), "v": (24, 8)})


def test_muon_s_steps_are_nearly_orthogonal() -> None:
    for shape in ((4, 50), (50, 4), (1, 9)):
        values = torch.linalg.svdvals(orthogonalised(torch.randn(shape, dtype=torch.float64)))
        assert 0.6 < values.min() <= values.max() < 1.3
    assert not orthogonalised(torch.zeros(3, 5)).any()


def test_singular_vectors_stay_and_the_scale_of_gradients_is_of_no_effect() -> None:
    matrix = torch.randn(5, 12, dtype=torch.float64)
    u, _, vh = torch.linalg.svd(matrix, full_matrices=False)
    step = orthogonalised(matrix)
    middle = u.T @ step @ vh.T
    # u and v of the matrix take the step apart: nothing is left beyond the diagonal, but for float64's rounding
    torch.testing.assert_close(middle, torch.diag(middle.diagonal()), rtol=0, atol=1e-12)
    torch.testing.assert_close(orthogonalised(1000 * matrix), step, rtol=0, atol=1e-12)
    torch.testing.assert_close(orthogonalised(matrix.T), step.T, rtol=0, atol=1e-12)


@pytest.mark.parametrize("ratio", [1.0, 4.0])
def test_factors_of_one_shape_step_together_as_they_do_alone(monkeypatch: pytest.MonkeyPatch, ratio: float) -> None:
    """What a GPU launches for all factors of a slot; a factor that diverged harms no other."""
    found = []
    for together in (False, True):
        monkeypatch.setattr(Muon, "_steps_together", staticmethod(lambda _, own=together: own))
        torch.manual_seed(0)
        bank = AdapterBank(LAYOUT, num_slots=1, num_rank_rows=16, dtype=torch.float64, moments=Muon.moments)
        own = resident(0, optim="muon", r=3, slot=0, loraplus_lr_ratio=ratio, max_grad_norm=0.0)
        weights = torch.randn(3, LAYOUT.width, dtype=torch.float64)
        bank.insert(own.spec.adapter, AdapterState(weights=weights))
        gradient = torch.randn(3, LAYOUT.width, dtype=torch.float64)
        gradient[:, LAYOUT.columns["k"].a] = float("nan")
        bank.grads_RD[bank.rank_rows(0)] = gradient
        Muon().update(bank, [own])
        stepped = bank.read(0).weights
        assert not torch.equal(stepped, weights)
        found.append(stepped)
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=1e-12, equal_nan=True)
    assert found[1].isnan().any(dim=0).sum() == 24
