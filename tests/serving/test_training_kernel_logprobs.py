"""Logarithms of drawn tokens by the kernel of training passes."""

from __future__ import annotations

import pytest
import torch

from cohort.serving.training_kernel_logprobs import priced_logprobs


@pytest.mark.parametrize("temperatures", [[1.0, 1.0, 1.0], [1.0, 0.7, 2.0]])
def test_they_are_those_of_the_softmax_in_any_company(temperatures: list[float]) -> None:
    logits, rows, picked = torch.randn(5, 101), [4, 0, 2], [5, 100, 0]
    found = priced_logprobs(logits, rows=rows, picked=picked, temperatures=temperatures)
    scaled = logits[rows].double() / torch.tensor(temperatures, dtype=torch.float64)[:, None]
    expected = scaled.log_softmax(dim=1).gather(1, torch.tensor(picked)[:, None])[:, 0]
    assert found == pytest.approx(expected.tolist(), abs=2e-6)
    alone = [
        priced_logprobs(logits, rows=[row], picked=[token], temperatures=[temperature])[0]
        for row, token, temperature in zip(rows, picked, temperatures, strict=True)
    ]
    assert alone == found
