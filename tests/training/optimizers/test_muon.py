"""Muon's iteration: singular values near 1, the same singular vectors, and the same step on either side."""

from __future__ import annotations

import torch

from cohort.training.optimizers.muon import orthogonalised


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
