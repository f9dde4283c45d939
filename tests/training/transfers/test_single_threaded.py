"""A thread that computes alone: no other one does, neither before nor after it."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from cohort.adapters.layout import AdapterLayout
from cohort.engine.train.early_weights import EarlyWeights
from cohort.training.transfers.single_threaded import use_one_thread
from cohort.training.transfers.transfer_threads import state_threads


def test_only_the_thread_that_asks_computes_alone() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with ThreadPoolExecutor(max_workers=1) as asking, ThreadPoolExecutor(max_workers=1) as early:
            assert early.submit(torch.get_num_threads).result() == 3
            is_told = asking.submit(use_one_thread).result()
            assert is_told or sys.platform != "linux" or not torch.backends.openmp.is_available()
            if not is_told:
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


@pytest.mark.skipif(sys.platform != "linux", reason="where torch's OpenMP can be told")
def test_threads_that_copy_states_and_write_weights_do(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with (
            state_threads("copies") as copies,
            EarlyWeights(AdapterLayout({}), folder_of=lambda _: tmp_path) as weights,
        ):
            for threads in (copies, weights._threads):
                assert threads.submit(torch.get_num_threads).result() == 1
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
