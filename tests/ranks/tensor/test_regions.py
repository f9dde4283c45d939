"""The borders of a divided block: each function's gradient is the other."""

from __future__ import annotations

import torch

from cohort.ranks.tensor.groups import RankGroup
from cohort.ranks.tensor.regions import Region
from tests.ranks.tensor.thread_group import run_threads


def test_a_divided_product_has_the_gradient_of_the_whole() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, 4, dtype=torch.float64, generator=generator)
    up, down = (torch.randn(4, 4, dtype=torch.float64, generator=generator) for _ in range(2))
    whole = x.clone().requires_grad_()
    ((whole @ up).tanh() @ down).square().sum().backward()

    def work(group: RankGroup) -> torch.Tensor:
        own, region = slice(2 * group.rank, 2 * group.rank + 2), Region(group)
        mine = x.clone().requires_grad_()
        y = region.leave((region.enter(mine) @ up[:, own]).tanh() @ down[own])
        y.square().sum().backward()
        assert mine.grad is not None
        return mine.grad

    for found in run_threads(2, work):
        torch.testing.assert_close(found, whole.grad)
