"""A thread that computes alone: no other one does, neither before nor after it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from cohort.training.transfers.single_threaded import compute_alone


def test_only_the_thread_that_asks_computes_alone() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with ThreadPoolExecutor(max_workers=1) as asking, ThreadPoolExecutor(max_workers=1) as early:
            assert early.submit(torch.get_num_threads).result() == 3
            if not asking.submit(compute_alone).result():
                pytest.skip("torch has no OpenMP here that can be told")
            assert asking.submit(torch.get_num_threads).result() == 1
            # what it computes is what it was
            numbers = torch.rand(513, 1025)
            assert torch.equal(asking.submit(lambda: numbers.T.double().contiguous()).result(), numbers.T.double())
            assert early.submit(torch.get_num_threads).result() == 3
        with ThreadPoolExecutor(max_workers=1) as late:
            assert late.submit(torch.get_num_threads).result() == 3
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
